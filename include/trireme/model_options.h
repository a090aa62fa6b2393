/**
 * @file model_options.h
 * @brief How a model is to be spread, and what it looks like: the structs of model.h.
 *
 * Ownership: strings and arrays are copied by the call that takes them. Thread safety: plain data.
 */
#ifndef TRIREME_MODEL_OPTIONS_H
#define TRIREME_MODEL_OPTIONS_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** How a model is spread. 0 is none. */
typedef int32_t trireme_strategy;

/** Numbers of the strategies. */
enum {
    /** Everything on every rank (DDP). */
    TRIREME_STRATEGY_DATA_PARALLEL = 1,
    /** Optimizer state sharded. */
    TRIREME_STRATEGY_ZERO1 = 2,
    /** Gradients too. */
    TRIREME_STRATEGY_ZERO2 = 3,
    /** Parameters too (fully sharded). */
    TRIREME_STRATEGY_ZERO3 = 4,
    /** Parameters sharded within groups of shard_ranks, gradients and state over all. */
    TRIREME_STRATEGY_HYBRID_SHARD = 5
};

/** How the gradients of ranks (or leaves) become one. */
enum {
    /**
     * Sum, then division by the number of contributions: leaves when reproducible, else ranks.
     * Micro-batches that were accumulated are summed.
     */
    TRIREME_GRADIENTS_AVERAGE = 0,
    /** Sum; the caller has scaled its gradients. */
    TRIREME_GRADIENTS_SUM = 1
};

/** What trireme_model_end_backward() does about gradients that were not handed in. */
enum {
    /** It fails and names the parameters. */
    TRIREME_UNUSED_ERROR = 0,
    /** They count as zero: state and weight decay go on. */
    TRIREME_UNUSED_ZERO = 1,
    /**
     * They count as zero where another rank or pass has one. A parameter that had none anywhere in
     * the step is not updated, and the step does not count for its ADAM correction; the ranks agree
     * on which at the step.
     */
    TRIREME_UNUSED_SKIP = 2
};

/** Whether ranks of one host keep one copy of the parameters between them, in memory that all of them see. */
enum {
    /** zero3 and hybrid_shard, if the ranks of the communicator share memory. */
    TRIREME_SHARE_AUTO = 0,
    /**
     * zero1 and zero2 too, or trireme_model_create() fails. A copy of which one rank holds all (a
     * world of 1, shard_ranks 1) has nobody to share with.
     */
    TRIREME_SHARE_ALWAYS = 1,
    /** Every rank has memory of its own, and gathers copy. */
    TRIREME_SHARE_NEVER = 2
};

/** Flags of a model. */
enum {
    /** Ranks may be absent; see "Uneven inputs" above. */
    TRIREME_MODEL_FLAG_UNEVEN = 1,
    /**
     * Buckets are reduced in the reverse order of registration in all steps. Without it that is so
     * in the first step only, and afterwards they are reduced in the order in which their gradients
     * came there on rank 0.
     */
    TRIREME_MODEL_FLAG_FIXED_ORDER = 2,
    /**
     * Shards are cut between rows, so that each row of a parameter (what has one index of its first
     * dimension; of a scalar, and of a parameter of one dimension, an element) lies on one rank:
     * where the even cut would divide a row, it is moved to the nearest end of it. For rules and
     * compressions that work on rows. Shards may differ by a row; nothing is padded.
     */
    TRIREME_MODEL_FLAG_WHOLE_ROWS = 4,
    /**
     * zero3, hybrid_shard: a unit that was gathered stays whole after its release until the
     * parameters change, so that each is gathered once a step and not twice, and not again for
     * another micro-batch or an evaluation. Working memory then holds all units. Nothing to do
     * where ranks share the parameters.
     */
    TRIREME_MODEL_FLAG_KEEP_GATHERED = 8,
    /**
     * A bucket is updated as soon as its gradients are reduced, in backward, and no gradients are
     * kept: see "Update in backward" in model.h.
     */
    TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD = 16
};

/** When a bucket hook is called. */
enum {
    /**
     * This rank's contribution is complete and no peer sees it yet. On the thread that handed in
     * the last gradient, or ended the pass.
     */
    TRIREME_HOOK_BEFORE = 1,
    /**
     * The part of the reduced gradients that this rank updates, before it is clipped. On the thread
     * of trireme_optimizer_step(), or with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD on that of the
     * call that finds the bucket reduced.
     */
    TRIREME_HOOK_AFTER = 2
};

/** A stretch of one parameter inside a bucket. */
typedef struct trireme_bucket_part {
    /** Number of the parameter. */
    uint64_t parameter;
    /** Which of its elements comes first. */
    uint64_t first;
    /** Elements; 1 or more. */
    uint64_t count;
    /** Where it begins in `data`, in elements. */
    uint64_t position;
} trireme_bucket_part; /* since 1.0 */

/** One bucket of gradients, for a bucket hook. */
typedef struct trireme_bucket {
    /** sizeof this struct as the library knows it. */
    uint32_t struct_size;
    /** TRIREME_HOOK_BEFORE or TRIREME_HOOK_AFTER. */
    int32_t phase;
    /** Number of the bucket, from 0 in the order of reduction of the first step. */
    uint64_t bucket;
    /** Elements at `data`. */
    uint64_t elements;
    /** May be changed, until the hook returns. */
    void *data;
    /** `part_count` stretches, in the order of `data`. */
    const trireme_bucket_part *parts;
    /** Number of parts. */
    uint64_t part_count;
    /**
     * Type of the elements: f32 or f64. Gradients of f16 and bf16 parameters are f32, and may lie
     * in one bucket with those of f32 ones.
     */
    trireme_dtype dtype;
    /** BEFORE: which pass of the step, from 0. AFTER: 0. */
    uint32_t pass;
} trireme_bucket; /* since 1.0 */

/**
 * A caller's own work on each bucket, such as noise, scaling or measuring. It returns 0, or any
 * other number to fail the step on all ranks. It may destroy the model and its optimizer, which
 * live on until the call under way is over; any other call on them answers
 * TRIREME_ERROR_INVALID_STATE. AFTER is called where a rank updates elements of the bucket
 * (data_parallel: everywhere, with all of them, and all ranks must do the same to them). BEFORE is
 * called once a bucket and pass; data_parallel and zero1 call it with the sum of all passes before
 * the last one reduces it, so with NO_SYNC not at all.
 */
typedef int32_t(TRIREME_CALL *trireme_bucket_callback)(const trireme_bucket *bucket,
                                                       void *user_data);

/** Start from TRIREME_MODEL_OPTIONS_INIT. In every field 0 means the default. */
typedef struct trireme_model_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Required. */
    trireme_strategy strategy;
    /** TRIREME_GRADIENTS_*. */
    int32_t gradients;
    /**
     * Leaves of the global batch for reproducible training; 0: reduction in rank order. At most
     * 65,536.
     */
    uint32_t leaves;
    /**
     * Gradients are reduced once this much is ready. Default: 25 MiB; a group of units is never
     * cut.
     */
    uint64_t bucket_bytes;
    /**
     * zero3: gathered units may take this much beyond the one in use. Default: the largest unit, so
     * that one is prefetched.
     */
    uint64_t prefetch_bytes;
    /** Longest any call may wait. Default: the communicator's. */
    uint64_t timeout_ns;
    /**
     * Neighbouring units are gathered together until they have this much. Default: 1 MiB; 1 joins
     * none.
     */
    uint64_t minimum_unit_bytes;
    /**
     * zero3, hybrid_shard: units below this stay whole on every rank and need no gather. Default:
     * none.
     */
    uint64_t persistent_unit_bytes;
    /**
     * As bucket_bytes, for the bucket that backward fills first, so that the exchange begins early.
     * Default: 1 MiB, or bucket_bytes if that is less.
     */
    uint64_t first_bucket_bytes;
    /**
     * hybrid_shard: S; must divide the world size. 0: the ranks of a host, where all ranks share
     * one; over tcp:// and other transports S must be given. 0 for the other strategies.
     */
    uint32_t shard_ranks;
    /** TRIREME_UNUSED_*. */
    int32_t unused;
    /** 0 or a sum of TRIREME_MODEL_FLAG_*. */
    uint32_t flags;
    /** TRIREME_SHARE_*. */
    int32_t share_parameters;
    /** Called for each bucket. NULL: none. All ranks have one or none has. */
    trireme_bucket_callback bucket_hook;
    /** Handed to bucket_hook. */
    void *hook_data;
    /**
     * Most that any rank may plan to hold: parameters, gradients and working memory at
     * trireme_model_seal(), with planned_rule optimizer state too; optimizer state at
     * trireme_optimizer_create(); above it, both fail with TRIREME_ERROR_OUT_OF_MEMORY on all ranks
     * before anything is allocated. What the two habits named above take beyond the plan does not
     * count, nor do the words of an optimizer with norm_ranks (552 bytes for each group of
     * group_max_norms and each different count of replicas), and on ranks of a transport one more
     * group that hybrid_shard or reshard_ranks sends from. Default: no limit.
     */
    uint64_t memory_limit_bytes;
    /**
     * hybrid_shard: the ranks of a copy are this far apart, such as N/S for those of S hosts with
     * N/S ranks each, or the size of all axes of a mesh that vary faster than the one of shards.
     * shard_ranks * shard_stride must divide the world size. 0: 1, neighbours. 0 for the other
     * strategies.
     */
    uint32_t shard_stride;
    /**
     * zero3, hybrid_shard: how many neighbours among the ranks that keep a copy of the parameters
     * spread a unit between them once it is gathered, until the parameters change: it comes first
     * from all of those ranks, and again, as for backward, from these alone, such as those of one
     * host. Working memory then holds a part of each unit, one of reshard_ranks. Must divide the
     * number of ranks that keep a copy. 0, or all of them: a unit comes from all each time. 1: this
     * rank alone, which is TRIREME_MODEL_FLAG_KEEP_GATHERED; with that flag at most 1. Nothing to
     * do where ranks share the parameters. 0 for the other strategies.
     */
    uint32_t reshard_ranks;
    /**
     * TRIREME_DTYPE_F16 or BF16: what a rank adds to a gradient is rounded to this type once, to
     * nearest even (beyond its range, which f16 has from 65,520 on, to inf), and travels in 2 bytes
     * an element; ranks add in f32 and sums stay f32, so trained bits depend on strategy, ranks and
     * buckets as little as without. A contribution is what is reduced at once: of a leaf, of a
     * pass, or of all passes where NO_SYNC keeps the sum. data_parallel gives sums to all ranks in
     * f32. Takes working memory for the rounded copy: of data_parallel and zero1 half of the
     * gradients, else half of the buckets in flight. With trained parameters of f32, f16 and bf16;
     * not with TRIREME_OPTIMIZER_FLAG_ONE_SWEEP. 0: gradients travel as f32, or f64 where the
     * parameter is.
     */
    trireme_dtype reduce_dtype;
    /**
     * TRIREME_OPTIMIZER_FLAG_*, but not USER: trireme_model_seal() counts state and working memory
     * of this rule with its default options against memory_limit_bytes. Plans only: the optimizer
     * may have another rule, and trireme_optimizer_create() compares what that one takes. The
     * options of an optimizer may take more, such as momentum of SGD and master weights. Not
     * without memory_limit_bytes. 0: no rule is counted.
     */
    int32_t planned_rule;
    /**
     * zero3, hybrid_shard: a directory. What this rank holds of the parameters (units that stay
     * whole excepted) lies in a file in it, which each rank makes for itself, without a name, so
     * that nothing is left of it when the process ends: see "Parameters in a file" in model.h. The
     * bits are the same. The caller's update rule (TRIREME_RULE_USER) gets pieces that end where a
     * block of the file does. Read as a path of the rank's own host; copied. Not with
     * TRIREME_SHARE_ALWAYS; without it ranks share no parameters then. All ranks have one or none
     * has. NULL: parameters stay in memory.
     */
    const char *offload_path;
    /**
     * Which part of those bytes lies in the file, in (0, 1], rounded up to whole blocks. Default:
     * 1.
     */
    double offload_ratio;
    /** Most memory for what is on its way to and from the file, at least 32,768. Default: 8 MiB. */
    uint64_t offload_buffer_bytes;
} trireme_model_options; /* since 1.0 */

/** Options of which only the strategy is missing. */
#define TRIREME_MODEL_OPTIONS_INIT { sizeof(trireme_model_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** Flags of a parameter. */
enum {
    /** Gathered with its unit, but has no gradient and is not updated. */
    TRIREME_PARAMETER_FLAG_FROZEN = 1
};

/** Describes one parameter. Start from TRIREME_PARAMETER_OPTIONS_INIT. */
typedef struct trireme_parameter_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** TRIREME_PARAMETER_FLAG_FROZEN or 0. */
    uint32_t flags;
    /** TRIREME_DTYPE_F32, F64, F16 or BF16; one per unit. */
    trireme_dtype dtype;
    /** Numbers at `shape`; 0 is a scalar. At most 16. */
    uint32_t dimensions;
    /** Copied. An extent may be 0. */
    const uint64_t *shape;
    /** Unique in the model; UTF-8, at most 255 bytes; required; copied. */
    const char *name;
    /**
     * Name of the unit. Default: a unit of the parameter's own name. Parameters of one unit are
     * added one after the other. An alias belongs to the unit of the parameter it is tied to; leave
     * NULL or name that one.
     */
    const char *unit;
    /**
     * Name of an earlier parameter that this one is an alias of: same dtype, shape and flags, same
     * memory, gradients added in the order of registration.
     */
    const char *tied_to;
    /**
     * How many models hold this same parameter, such as a layer norm that every tensor-parallel
     * rank has: an optimizer with norm_ranks counts it once. Default: 1; of an alias that of the
     * parameter it is tied to.
     */
    uint32_t replicas;
    /**
     * Number of the group of parameters that this one belongs to, for an optimizer that has
     * group_max_norms, group_rate_factors or group_weight_decays. A parameter of several replicas
     * is in the same one in all models. Default: 0; of an alias that of the parameter it is tied
     * to.
     */
    uint32_t norm_group;
} trireme_parameter_options; /* since 1.0 */

/** A parameter that is described by nothing yet. */
#define TRIREME_PARAMETER_OPTIONS_INIT { sizeof(trireme_parameter_options), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** What a sealed model looks like. Set struct_size before the call. */
typedef struct trireme_model_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** As created. */
    trireme_strategy strategy;
    /** This rank. */
    int32_t rank;
    /** Number of ranks. */
    int32_t world_size;
    /** As created; 0 if not reproducible. */
    uint32_t leaves;
    /** Most leaves a rank has in a step, ceil(leaves / world size); 0 if not reproducible. */
    uint32_t micro_batches;
    /** Parameters added, aliases included. */
    uint64_t parameters;
    /** Units. */
    uint64_t units;
    /** Elements of the flat vectors: all parameters in the order added, aliases left out. */
    uint64_t elements;
    /** Buckets in which gradients are reduced. */
    uint64_t buckets;
    /** Groups in which units are gathered, persistent ones included. */
    uint64_t groups;
    /**
     * Size of the copy of the parameters that ranks keep between them in shared memory; 0: every
     * rank has its own memory.
     */
    uint64_t shared_bytes;
} trireme_model_info; /* since 1.0 */

/** Info ready for trireme_model_get_info(). */
#define TRIREME_MODEL_INFO_INIT { sizeof(trireme_model_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** What one unit looks like on this rank. Set struct_size before the call. */
typedef struct trireme_unit_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Type of its elements. */
    trireme_dtype dtype;
    /** Elements of the whole unit. */
    uint64_t elements;
    /** First element of the unit that this rank owns. */
    uint64_t shard_first;
    /** Elements of the unit that this rank owns; the group's shard may lie in other units. */
    uint64_t shard_count;
    /** Where the unit begins in the flat vectors. */
    uint64_t flat_first;
    /** Number of the group it is gathered with, from 0. */
    uint64_t group;
} trireme_unit_info; /* since 1.0 */

/** Info ready for trireme_model_get_unit_info(). */
#define TRIREME_UNIT_INFO_INIT { sizeof(trireme_unit_info), 0, 0, 0, 0, 0, 0 }

/** Bytes of this rank by kind: as the plan says, and as really allocated. Set struct_size before the call. */
typedef struct trireme_model_memory {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0. */
    uint32_t reserved;
    /** Parameters held for good. */
    uint64_t planned_parameters;
    /** Gradients held for good. */
    uint64_t planned_gradients;
    /** State of the optimizer; 0 before one is created. */
    uint64_t planned_optimizer_state;
    /** Units and buckets in flight, partial sums of the tree. */
    uint64_t planned_working;
    /** As planned_parameters, counted where memory is allocated. */
    uint64_t allocated_parameters;
    /** As planned_gradients, counted where memory is allocated. */
    uint64_t allocated_gradients;
    /** As planned_optimizer_state, counted where memory is allocated. */
    uint64_t allocated_optimizer_state;
    /** As planned_working, counted where memory is allocated. */
    uint64_t allocated_working;
    /**
     * Bytes of gradients and parameters (and of what TRIREME_RULE_MUON makes of gradients) this
     * rank gives its peers to read in a step of one micro-batch, in which zero3 gathers each unit
     * twice (once with TRIREME_MODEL_FLAG_KEEP_GATHERED; the second time from reshard_ranks).
     */
    uint64_t planned_step_bytes;
    /**
     * Such bytes it gave from the step before the last one to the last one, counted where they are
     * sent.
     */
    uint64_t sent_step_bytes;
} trireme_model_memory; /* since 1.0 */

/** A report ready for trireme_model_get_memory(). */
#define TRIREME_MODEL_MEMORY_INIT { sizeof(trireme_model_memory), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** What the model's calls have done on this rank since it was sealed. Set struct_size before the call. */
typedef struct trireme_model_statistics {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0. */
    uint32_t reserved;
    /** Optimizer steps, those that join() shadowed included. */
    uint64_t steps;
    /** Groups that were gathered from their owners. */
    uint64_t gathers;
    /** Those of them that began before they were asked for. */
    uint64_t prefetched;
    /** Buckets that were reduced, once for each pass. */
    uint64_t reductions;
    /** Most groups that were whole in flight at one time. */
    uint64_t peak_groups;
    /**
     * Time in which calls of this model waited for operations: communication that compute did not
     * hide. With ONE_SWEEP the update is part of an operation.
     */
    uint64_t exposed_ns;
    /**
     * How often a bucket took memory beyond the plan, because gradients came in another order than
     * buckets are reduced in, this rank was absent, or others may lack gradients (TRIREME_UNUSED_*)
     * and need this rank in a gather first.
     */
    uint64_t extra_buckets;
    /**
     * Buckets that are reduced at another place than the reverse order of registration gives them,
     * since the first step has shown the order of gradients.
     */
    uint64_t moved_buckets;
    /** Those of `gathers` that came from reshard_ranks only. */
    uint64_t reshard_gathers;
} trireme_model_statistics; /* since 1.0 */

/** A report ready for trireme_model_get_statistics(). */
#define TRIREME_MODEL_STATISTICS_INIT { sizeof(trireme_model_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** What lies in a file, of this rank: parameters of a model, state of an optimizer, or activations of a trainer. Set struct_size before the call. */
typedef struct trireme_offload_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 1: the file is read and written past the system's cache (O_DIRECT); 0: through it. */
    int32_t direct;
    /** 1: by io_uring; 0: by pread() and pwrite() on threads of its own. */
    int32_t ring;
    /** errno of the last write that failed; 0 if none did. */
    int32_t failed_errno;
    /** The directory, as given; lives as long as what was asked, as the next two do. */
    const char *path;
    /** What refused O_DIRECT; "" if it is in use. */
    const char *why_not_direct;
    /** What refused io_uring; "" if it is in use. */
    const char *why_not_ring;
    /** What lies in the file. */
    uint64_t file_bytes;
    /** What stays in memory: by offload_ratio, and what could not be written. */
    uint64_t resident_bytes;
    /** Memory for what is on its way. */
    uint64_t buffer_bytes;
    /** The largest piece that is read or written at once. */
    uint64_t block_bytes;
    /** Asked of the file so far. */
    uint64_t read_bytes;
    /** Given to the file so far. */
    uint64_t written_bytes;
    /** That calls waited for the disk, so far. */
    double waited_seconds;
    /**
     * Blocks that could not be written; they stay in memory since, where there was memory for them.
     */
    uint64_t failed_writes;
    /** Where in the file the last one of them failed. */
    uint64_t failed_offset;
} trireme_offload_info; /* since 1.0 */

/** Info ready for trireme_model_get_offload_info() and its like. */
#define TRIREME_OFFLOAD_INFO_INIT { sizeof(trireme_offload_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

TRIREME_END_C

#endif
