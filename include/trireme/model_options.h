/**
 * @file model_options.h
 * @brief The structs of model.h: the options of a model and of its parameters, and its reports.
 *
 * Memory limit (memory_limit_bytes): the most that any rank may plan to hold. Two calls compare
 * their plan with it:
 * - trireme_model_seal() counts parameters, gradients and working memory. With planned_rule it
 *   counts optimizer state, too.
 * - trireme_optimizer_create() counts the optimizer state, too.
 *
 * Above the limit both fail with TRIREME_ERROR_OUT_OF_MEMORY on all ranks. Nothing is allocated
 * then. The limit does not count:
 * - Memory beyond the plan that two usage patterns take: see "Memory" in model.h.
 * - The words of an optimizer with norm_ranks. They take 552 bytes for each group of
 *   group_max_norms, times the number of different counts of replicas.
 * - On ranks of a transport, one more group. A gather of hybrid_shard or reshard_ranks sends from
 *   this copy.
 *
 * Planned rule (planned_rule): trireme_model_seal() counts the state and the working memory of this
 * rule with its default options. The optimizer may have another rule, because planned_rule only
 * plans. trireme_optimizer_create() compares what the optimizer's own rule takes. The options of an
 * optimizer may take more memory, such as momentum of SGD and master weights.
 *
 * Resharding (reshard_ranks = R, for zero3 and hybrid_shard): the first gather of a unit comes from
 * all ranks that keep a copy of the parameters. Then R neighbouring ranks, such as those of one
 * host, spread the unit between them until the parameters change. Later gathers, such as those for
 * backward, come from these R ranks alone.
 * - Working memory then holds 1/R of each unit.
 * - R divides the number of ranks that keep a copy.
 * - R = 1: each rank keeps the whole unit, which is TRIREME_MODEL_FLAG_KEEP_GATHERED. With that
 *   flag R is at most 1.
 * - R = 0, or the number of ranks that keep a copy: a unit comes from all of them each time.
 * - Where ranks share the parameters, R has no effect.
 *
 * Gradients of 2 bytes (reduce_dtype): a rank rounds each contribution once, to nearest even, and
 * sends 2 bytes an element. A number beyond the range of the type becomes inf. f16 has that from
 * 65,520 on. Ranks add in f32 and sums stay f32. So trained bits depend on strategy, ranks and
 * buckets as little as without it.
 * - A contribution is what is reduced at once: that of a leaf or of a pass. Where NO_SYNC keeps the
 *   sum, it is that of all passes.
 * - data_parallel gives the sums to all ranks in f32.
 * - The rounded copy takes working memory. With data_parallel and zero1 that is half of the
 *   gradients, else half of the buckets in flight.
 * - Trained parameters are f32, f16 or bf16.
 * - It does not go with TRIREME_OPTIMIZER_FLAG_ONE_SWEEP.
 *
 * Ownership: the call that takes a string or an array copies it. Thread safety: plain data.
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
    /** Every rank holds everything (DDP). */
    TRIREME_STRATEGY_DATA_PARALLEL = 1,
    /** Ranks shard the optimizer state. */
    TRIREME_STRATEGY_ZERO1 = 2,
    /** Ranks shard the gradients, too. */
    TRIREME_STRATEGY_ZERO2 = 3,
    /** Ranks shard the parameters, too (fully sharded). */
    TRIREME_STRATEGY_ZERO3 = 4,
    /**
     * Groups of shard_ranks ranks shard the parameters. All ranks shard the gradients and the
     * optimizer state.
     */
    TRIREME_STRATEGY_HYBRID_SHARD = 5
};

/** How the gradients of ranks (or leaves) become one. */
enum {
    /**
     * The sum, divided by the number of contributions: of leaves when reproducible, else of ranks.
     * Micro-batches that were accumulated are summed.
     */
    TRIREME_GRADIENTS_AVERAGE = 0,
    /** The sum. The caller scales its gradients itself. */
    TRIREME_GRADIENTS_SUM = 1
};

/** How trireme_model_end_backward() treats gradients that the caller did not hand in. */
enum {
    /** The call fails and names the parameters. */
    TRIREME_UNUSED_ERROR = 0,
    /** They count as zero. Optimizer state and weight decay go on. */
    TRIREME_UNUSED_ZERO = 1,
    /**
     * They count as zero where another rank or pass has one. A parameter that has none anywhere in
     * the step is not updated, and the step does not count for its ADAM correction. The ranks agree
     * at the step which parameters these are.
     */
    TRIREME_UNUSED_SKIP = 2
};

/** Whether the ranks of a host share one copy of the parameters. */
enum {
    /** zero3 and hybrid_shard share, if the ranks of the communicator share memory. */
    TRIREME_SHARE_AUTO = 0,
    /**
     * zero1 and zero2 share, too. If sharing is not possible, trireme_model_create() fails. A rank
     * that holds a whole copy alone (a world of 1, or shard_ranks 1) has no peer to share with.
     */
    TRIREME_SHARE_ALWAYS = 1,
    /** Every rank has memory of its own, and gathers copy. */
    TRIREME_SHARE_NEVER = 2
};

/** Flags of a model. */
enum {
    /** Ranks may be absent: see "Uneven inputs" in model.h. */
    TRIREME_MODEL_FLAG_UNEVEN = 1,
    /**
     * All steps reduce buckets in the reverse order of registration. Without the flag only the
     * first step does. Later steps reduce them in the order in which rank 0 had their gradients.
     */
    TRIREME_MODEL_FLAG_FIXED_ORDER = 2,
    /**
     * Shards are cut between rows, so that each row of a parameter lies on one rank. This serves
     * rules and compressions that work on rows. A row is everything with one index of the first
     * dimension. In a scalar, and in a parameter of one dimension, it is an element. Where the even
     * cut would divide a row, it moves to the nearest end of that row. Shards may differ by a row;
     * nothing is padded.
     */
    TRIREME_MODEL_FLAG_WHOLE_ROWS = 4,
    /**
     * zero3, hybrid_shard: a gathered unit stays whole after its release until the parameters
     * change. So a step gathers each unit once and not twice. Another micro-batch or an evaluation
     * does not gather it again. Working memory then holds all units. Where ranks share the
     * parameters, the flag has no effect.
     */
    TRIREME_MODEL_FLAG_KEEP_GATHERED = 8,
    /**
     * The owner updates a bucket in backward, as soon as its gradients are reduced. No gradients
     * are kept: see "Update in backward" in model.h.
     */
    TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD = 16
};

/** When a bucket hook is called. */
enum {
    /**
     * This rank's contribution is complete, and no peer sees it yet. The hook runs on the thread
     * that handed in the last gradient, or ended the pass.
     */
    TRIREME_HOOK_BEFORE = 1,
    /**
     * The bucket is reduced. The hook gets the part that this rank updates, before it is clipped.
     * It runs on the thread of trireme_optimizer_step(). With TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD
     * it runs on the thread of the call that finds the bucket reduced.
     */
    TRIREME_HOOK_AFTER = 2
};

/** A stretch of one parameter inside a bucket. */
typedef struct trireme_bucket_part {
    /** Number of the parameter. */
    uint64_t parameter;
    /** Number of the parameter's element with which the stretch begins, from 0. */
    uint64_t first;
    /** Elements of the stretch; 1 or more. */
    uint64_t count;
    /** Where the stretch begins in `data`, in elements. */
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
    /** The gradients. The hook may change them until it returns. */
    void *data;
    /** `part_count` stretches of parameters, in the order of `data`. */
    const trireme_bucket_part *parts;
    /** Number of parts. */
    uint64_t part_count;
    /**
     * Type of the elements: f32 or f64. Gradients of f16 and bf16 parameters are f32, and may lie
     * in one bucket with those of f32 parameters.
     */
    trireme_dtype dtype;
    /** BEFORE: number of the pass in the step, from 0. AFTER: 0. */
    uint32_t pass;
} trireme_bucket; /* since 1.0 */

/**
 * A caller's own work on each bucket, such as noise, scaling or measuring. It returns 0, or any
 * other number to fail the step on all ranks.
 *
 * AFTER is called where a rank updates elements of the bucket. With data_parallel every rank gets
 * all elements, and all ranks must do the same to them.
 *
 * BEFORE is called once a bucket and pass. data_parallel and zero1 call it in the last pass, with
 * the sum of all passes, before that pass reduces it. So passes with NO_SYNC do not call it there.
 *
 * The callback may destroy the model and its optimizer. Both live on until the call under way is
 * over. Any other call on them answers TRIREME_ERROR_INVALID_STATE.
 */
typedef int32_t(TRIREME_CALL *trireme_bucket_callback)(const trireme_bucket *bucket,
                                                       void *user_data);

/** Start from TRIREME_MODEL_OPTIONS_INIT. In every field 0 means the default. */
typedef struct trireme_model_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** How the model is spread: TRIREME_STRATEGY_*. Required. */
    trireme_strategy strategy;
    /** How contributions become one: TRIREME_GRADIENTS_*. Default: TRIREME_GRADIENTS_AVERAGE. */
    int32_t gradients;
    /**
     * Leaves of the global batch for reproducible training; at most 65,536. Default: 0, ranks
     * reduce in rank order.
     */
    uint32_t leaves;
    /**
     * Gradients are reduced once this many bytes are ready. A group of units is never cut. Default:
     * 25 MiB.
     */
    uint64_t bucket_bytes;
    /**
     * zero3: bytes that gathered units may take beyond the unit in use. Default: those of the
     * largest unit, so that one unit is prefetched.
     */
    uint64_t prefetch_bytes;
    /** Longest that any call may wait, in nanoseconds. Default: the communicator's. */
    uint64_t timeout_ns;
    /**
     * Neighbouring units are gathered together until they have this many bytes. 1 joins none.
     * Default: 1 MiB.
     */
    uint64_t minimum_unit_bytes;
    /**
     * zero3, hybrid_shard: units below this many bytes stay whole on every rank and need no gather.
     * Default: 0, there are none.
     */
    uint64_t persistent_unit_bytes;
    /**
     * As bucket_bytes, for the bucket that backward fills first. A small one begins the exchange
     * early. Default: 1 MiB, or bucket_bytes if that is less.
     */
    uint64_t first_bucket_bytes;
    /**
     * hybrid_shard: S, the number of ranks that keep one copy of the parameters between them. S
     * divides the world size. Over tcp:// and other transports it is required. Must be 0 for other
     * strategies. Default: 0, all ranks, which must be on one host.
     */
    uint32_t shard_ranks;
    /** Gradients that are not handed in: TRIREME_UNUSED_*. Default: TRIREME_UNUSED_ERROR. */
    int32_t unused;
    /** 0 or a sum of TRIREME_MODEL_FLAG_*. Default: 0. */
    uint32_t flags;
    /** One copy a host: TRIREME_SHARE_*. Default: TRIREME_SHARE_AUTO. */
    int32_t share_parameters;
    /** Called for each bucket. All ranks have one or none has. Default: NULL, none. */
    trireme_bucket_callback bucket_hook;
    /** Handed to bucket_hook. Default: NULL. */
    void *hook_data;
    /**
     * Most bytes that any rank may plan to hold. Above it trireme_model_seal() and
     * trireme_optimizer_create() fail with TRIREME_ERROR_OUT_OF_MEMORY on all ranks, before
     * anything is allocated. See "Memory limit" at the top of this file. Default: 0, no limit.
     */
    uint64_t memory_limit_bytes;
    /**
     * hybrid_shard: the ranks of a copy are this far apart. N/S fits S hosts with N/S ranks each.
     * On a mesh it is the size of all axes that vary faster than the one of shards. shard_ranks *
     * shard_stride divides the world size. Must be 0 for other strategies. Default: 1, neighbours.
     */
    uint32_t shard_stride;
    /**
     * zero3, hybrid_shard: this many neighbouring ranks keep each unit spread between them after
     * its first gather. It divides the number of ranks that keep a copy. Must be 0 for other
     * strategies. See "Resharding" at the top of this file. Default: 0, each gather comes from all
     * of them.
     */
    uint32_t reshard_ranks;
    /**
     * TRIREME_DTYPE_F16 or BF16: type in which gradients travel; sums stay f32. See "Gradients of 2
     * bytes" at the top of this file. Not with TRIREME_OPTIMIZER_FLAG_ONE_SWEEP. Default: 0,
     * gradients travel as f32, or as f64 where the parameter is f64.
     */
    trireme_dtype reduce_dtype;
    /**
     * TRIREME_RULE_*, but not TRIREME_RULE_USER: rule whose state trireme_model_seal() counts
     * against memory_limit_bytes, which it needs. See "Planned rule" at the top of this file.
     * Default: 0, no rule is counted.
     */
    int32_t planned_rule;
    /**
     * zero3, hybrid_shard: directory on this rank's host for a file of parameters, copied. See
     * "Parameters in a file" in model.h. All ranks have one or none has. Not with
     * TRIREME_SHARE_ALWAYS; TRIREME_SHARE_AUTO shares nothing then. Default: NULL, parameters stay
     * in memory.
     */
    const char *offload_path;
    /**
     * Part of the parameters' bytes that lies in the file. In (0, 1]; rounded up to whole blocks.
     * Needs offload_path. Default: 1.
     */
    double offload_ratio;
    /**
     * Most bytes of memory for blocks on their way to and from the file; at least 32,768. Needs
     * offload_path. Default: 8 MiB.
     */
    uint64_t offload_buffer_bytes;
} trireme_model_options; /* since 1.0 */

/** Options of which only the strategy is missing. */
#define TRIREME_MODEL_OPTIONS_INIT \
    { sizeof(trireme_model_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
      0, 0, 0 }

/** Flags of a parameter. */
enum {
    /** The parameter is gathered with its unit, but has no gradient and is not updated. */
    TRIREME_PARAMETER_FLAG_FROZEN = 1
};

/** Describes one parameter. Start from TRIREME_PARAMETER_OPTIONS_INIT. */
typedef struct trireme_parameter_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** TRIREME_PARAMETER_FLAG_FROZEN or 0. Default: 0. */
    uint32_t flags;
    /**
     * Type of the elements: TRIREME_DTYPE_F32, F64, F16 or BF16. All parameters of a unit have the
     * same. Required.
     */
    trireme_dtype dtype;
    /** Numbers at `shape`; at most 16. Default: 0, a scalar. */
    uint32_t dimensions;
    /** Extents of the dimensions, copied. An extent may be 0. */
    const uint64_t *shape;
    /** Unique in the model; UTF-8, at most 255 bytes; copied. Required. */
    const char *name;
    /**
     * Name of the unit. The caller adds the parameters of one unit one after the other. An alias
     * belongs to the unit of the parameter it is tied to: leave it NULL or name that unit. Default:
     * NULL, a unit of the parameter's own name.
     */
    const char *unit;
    /**
     * Name of an earlier parameter that this one is an alias of. Both have the same dtype, shape,
     * flags and memory. Gradients are added in the order of registration. Default: NULL, no alias.
     */
    const char *tied_to;
    /**
     * Number of models that hold this same parameter, such as a layer norm that every
     * tensor-parallel rank has. An optimizer with norm_ranks counts it once. Default: 1; for an
     * alias, the number of the parameter it is tied to.
     */
    uint32_t replicas;
    /**
     * Number of the parameter's group, for group_max_norms, group_rate_factors and
     * group_weight_decays of an optimizer. A parameter of several replicas has the same group in
     * all models. Default: 0; for an alias, the group of the parameter it is tied to.
     */
    uint32_t norm_group;
} trireme_parameter_options; /* since 1.0 */

/** A parameter that is described by nothing yet. */
#define TRIREME_PARAMETER_OPTIONS_INIT \
    { sizeof(trireme_parameter_options), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** The shape of a sealed model. Set struct_size before the call. */
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
    /** Bytes of the copy of the parameters that ranks share; 0 if every rank has its own memory. */
    uint64_t shared_bytes;
} trireme_model_info; /* since 1.0 */

/** Info ready for trireme_model_get_info(). */
#define TRIREME_MODEL_INFO_INIT { sizeof(trireme_model_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** The place of one unit on this rank. Set struct_size before the call. */
typedef struct trireme_unit_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Type of its elements. */
    trireme_dtype dtype;
    /** Elements of the whole unit. */
    uint64_t elements;
    /** First element of the unit that this rank owns. */
    uint64_t shard_first;
    /**
     * Elements of the unit that this rank owns. The rank's shard of the group may lie in other
     * units.
     */
    uint64_t shard_count;
    /** Where the unit begins in the flat vectors. */
    uint64_t flat_first;
    /** Number of the group it is gathered with, from 0. */
    uint64_t group;
} trireme_unit_info; /* since 1.0 */

/** Info ready for trireme_model_get_unit_info(). */
#define TRIREME_UNIT_INFO_INIT { sizeof(trireme_unit_info), 0, 0, 0, 0, 0, 0 }

/**
 * Bytes of this rank by kind: as planned, and as really allocated. Set struct_size before the call.
 */
typedef struct trireme_model_memory {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0. */
    uint32_t reserved;
    /** Parameters that this rank always holds in memory. */
    uint64_t planned_parameters;
    /** Gradients that this rank always holds. */
    uint64_t planned_gradients;
    /** State of the optimizer; 0 before one is created. */
    uint64_t planned_optimizer_state;
    /** Units and buckets in flight, partial sums of the tree, and more: see model.h. */
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
     * Bytes of gradients and parameters that this rank gives its peers to read in a step of one
     * micro-batch. zero3 gathers each unit twice; the second time from reshard_ranks. With
     * TRIREME_MODEL_FLAG_KEEP_GATHERED it gathers once. TRIREME_RULE_MUON adds the directions that
     * it makes of gradients.
     */
    uint64_t planned_step_bytes;
    /**
     * Bytes of that kind that this rank gave from the step before the last one to the last one,
     * counted where they are sent.
     */
    uint64_t sent_step_bytes;
} trireme_model_memory; /* since 1.0 */

/** A report ready for trireme_model_get_memory(). */
#define TRIREME_MODEL_MEMORY_INIT { sizeof(trireme_model_memory), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Counts of the model's calls on this rank since it was sealed. Set struct_size before the call.
 */
typedef struct trireme_model_statistics {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0. */
    uint32_t reserved;
    /** Optimizer steps, with those that trireme_optimizer_join() shadowed. */
    uint64_t steps;
    /** Groups that this rank gathered from their owners. */
    uint64_t gathers;
    /** Those of `gathers` that began before the caller asked for them. */
    uint64_t prefetched;
    /** Buckets that were reduced, once for each pass. */
    uint64_t reductions;
    /** Most groups that were whole, or on their way, at one time. */
    uint64_t peak_groups;
    /**
     * Nanoseconds in which calls of this model waited for operations: communication that compute
     * did not hide. With ONE_SWEEP the update is part of an operation.
     */
    uint64_t exposed_ns;
    /**
     * How often a bucket took memory beyond the plan. Causes: gradients came in another order than
     * buckets are reduced in; this rank was absent; or others may lack gradients (TRIREME_UNUSED_*)
     * and need this rank in a gather first.
     */
    uint64_t extra_buckets;
    /**
     * Buckets that moved since the first step has shown the order of gradients. They are reduced at
     * another place than the reverse order of registration gives them.
     */
    uint64_t moved_buckets;
    /** Those of `gathers` that came from reshard_ranks only. */
    uint64_t reshard_gathers;
} trireme_model_statistics; /* since 1.0 */

/** A report ready for trireme_model_get_statistics(). */
#define TRIREME_MODEL_STATISTICS_INIT \
    { sizeof(trireme_model_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Contents and transfers of a file of this rank. It holds parameters of a model, state of an
 * optimizer, or activations of a trainer. Set struct_size before the call.
 */
typedef struct trireme_offload_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 1: the file is read and written past the system's cache (O_DIRECT); 0: through it. */
    int32_t direct;
    /** 1: by io_uring; 0: by pread() and pwrite() on threads of its own. */
    int32_t ring;
    /** errno of the last write that failed; 0 if none did. */
    int32_t failed_errno;
    /**
     * The directory, as given. This string and the next two live as long as the object that was
     * asked.
     */
    const char *path;
    /** The reason why O_DIRECT is not in use; "" if it is. */
    const char *why_not_direct;
    /** The reason why io_uring is not in use; "" if it is. */
    const char *why_not_ring;
    /** Bytes in the file. */
    uint64_t file_bytes;
    /** Bytes that stay in memory: by offload_ratio, and blocks that could not be written. */
    uint64_t resident_bytes;
    /** Bytes of memory for blocks on their way. */
    uint64_t buffer_bytes;
    /** Bytes of the largest piece that is read or written at once. */
    uint64_t block_bytes;
    /** Bytes asked of the file so far. */
    uint64_t read_bytes;
    /** Bytes given to the file so far. */
    uint64_t written_bytes;
    /** Seconds that calls have waited for the disk so far. */
    double waited_seconds;
    /**
     * Blocks that could not be written. They stay in memory since, where there was memory for them.
     */
    uint64_t failed_writes;
    /** Where in the file the last failed write was, in bytes. */
    uint64_t failed_offset;
} trireme_offload_info; /* since 1.0 */

/** Info ready for trireme_model_get_offload_info() and its like. */
#define TRIREME_OFFLOAD_INFO_INIT \
    { sizeof(trireme_offload_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

TRIREME_END_C

#endif
