/**
 * @file model_options.h
 * @brief The structs of model.h: the options of a model and of its parameters, and its reports.
 *
 * The top of model.h explains units, groups, buckets, passes and leaves.
 *
 * Memory limit (memory_limit_bytes): the most that any rank may plan to hold. Three calls compare
 * their plan with it:
 * - trireme_model_seal() counts parameters, gradients and working memory. With planned_rule it
 *   counts optimizer state, too.
 * - trireme_optimizer_create() counts the optimizer state, too.
 * - trireme_trainer_create() with a pipeline counts planned_parameter_gradient_bytes and
 *   planned_exchange_bytes of trireme_trainer_info, too.
 *
 * Above the limit they fail with TRIREME_ERROR_OUT_OF_MEMORY on all ranks. Nothing is allocated
 * then. The limit does not count:
 * - Memory beyond the plan. "Memory" in model.h lists the usage patterns that need it.
 * - The sums that an optimizer with norm_ranks exchanges: 8 bytes, and 552 bytes for each norm. All
 *   gradients have one norm, or each group of parameters has one. If parameters have k different
 *   values of `replicas`, each norm takes k times as much.
 * - A copy of one unit group, from which hybrid_shard and units.reshard_ranks send where a
 *   transport carries the bytes.
 *
 * Planned rule (planned_rule): trireme_model_seal() counts the state and the working memory of this
 * rule with its default options. The optimizer may have another rule, because planned_rule only
 * plans. trireme_optimizer_create() compares what the optimizer's own rule takes. The options of an
 * optimizer may take more memory, such as momentum of SGD and master weights.
 *
 * Resharding (units.reshard_ranks = R, for zero3 and hybrid_shard): the first gather of a unit
 * comes from all ranks that keep a copy of the parameters. Then R neighbouring ranks, such as those
 * of one host, spread the unit between them until the parameters change. Later gathers, such as
 * those for backward, come from these R ranks alone.
 * - Working memory then holds 1/R of each unit.
 * - R divides the number of ranks that keep a copy.
 * - R = 1: each rank keeps the whole unit, as with TRIREME_MODEL_FLAG_KEEP_GATHERED. With that flag
 *   R must be 0 or 1.
 * - R = 0, or the number of ranks that keep a copy: a unit comes from all of them each time.
 * - Where ranks share the parameters, R has no effect.
 *
 * Gradients of 2 bytes (reduce_dtype): a rank rounds each contribution once, to nearest even, and
 * sends 2 bytes an element. A number beyond the range of the type becomes inf. f16 has that from
 * 65,520 on. Ranks add in f32 and sums stay f32. Reproducible training stays reproducible.
 * - A contribution is the gradient of one leaf, or of one pass. Where NO_SYNC keeps a sum of
 *   passes, it is that sum.
 * - data_parallel gives the sums to all ranks in f32.
 * - The rounded copy takes working memory. With data_parallel and zero1 that is half of the
 *   gradients, else half of the buckets in flight.
 * - Trained parameters are f32, f16 or bf16.
 * - It does not go with TRIREME_OPTIMIZER_FLAG_ONE_SWEEP.
 *
 * Shared parameters: on a mesh, a parameter may be TRIREME_PLACEMENT_SHARED along "tensor" or
 * "pipeline", such as a layer norm under sequence parallelism. Each rank along the axis hands in a
 * summand of its gradient. The ranks add these up before the gradients of the data ranks meet. All
 * ranks along the axis end with the same bits.
 * - The summands are added along the binary tree of "Reproducible" in model.h, with ranks in place
 * of leaves. A rank that has several summands may hand in their sum along that tree. If each rank
 *   has as many, a power of two, the bits do not depend on the number of ranks.
 * - A sum is made for each pass that is reduced. With `leaves` that is each leaf. data_parallel and
 *   zero1 add up the passes of NO_SYNC before.
 * - A sum starts when the gradients of all its parameters are in, and overlaps with the rest of
 *   backward. With a bucket hook it starts after TRIREME_HOOK_BEFORE, which sees the summand.
 * - Summands travel as f32, or as f64 where the parameter is f64. reduce_dtype rounds their sum.
 * - A gradient counts as handed in if any rank along the axis has handed it in.
 * - Buckets keep the order of the first step, as with TRIREME_MODEL_FLAG_FIXED_ORDER.
 * - Along "pipeline" a pass waits for no sum before its end. With zero2, zero3 and hybrid_shard
 *   buckets may then take memory beyond the plan.
 * - Working memory holds the summands once more. An axis of one rank takes no memory and no time.
 * - trireme_model_seal() compares the strategy, gradients, leaves, unused and reduce_dtype of such
 *   models along the axis, and whether there is a hook. A difference is a MISMATCH.
 * - All models along the axis make, end and discard their passes together. A model that fails fails
 *   the others.
 * - It does not go with TRIREME_MODEL_FLAG_UNEVEN, TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD or
 *   TRIREME_OPTIMIZER_FLAG_ONE_SWEEP. A parameter is shared along one axis of several ranks.
 *
 * Split parameters: on a mesh, a parameter may be TRIREME_PLACEMENT_SPLIT along "tensor" or
 * "pipeline". Each rank along the axis registers its part, with the part's own shape. The placement
 * tells which indices of one dimension lie there.
 * - trireme_model_seal() compares the parts along the axis. A name, type or whole shape that
 *   differs is a MISMATCH. An index on two ranks or on none is INVALID_ARGUMENT on all of them.
 * - TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING draws by the name, and the number of an element in
 *   the whole parameter. So parts are rounded as the whole is in one process.
 * - LAMB and LARS take norms of the whole parameter, which ranks add up along the axis. A norm
 *   takes 1,104 bytes for each parameter and axis.
 * - ADAFACTOR takes rows and columns of the whole matrix, whose sums ranks add up along the axis.
 *   For R rows and C columns that takes 8 + 24 (R + C) bytes, for each axis that cuts the
 *   matrix.
 * - MUON gathers the whole matrix along the axis, and each rank along it makes all of its products.
 *   The rank of a model that computes with a matrix takes memory for the whole of it, for each axis
 *   that cuts it. Where TRIREME_UNUSED_SKIP skips a part on one rank of the axis, the others take 0
 *   for its directions.
 * - Without the placement the library cannot tell a part, and each rule takes what lies there.
 * - Models with placed parameters that are trained have one rule; another one is a MISMATCH.
 * - Each part counts once in a norm. The flat vectors, ranges and saved state are those of the
 *   rank's part. The caller's rule sees the numbers of elements in the part.
 *
 * Tied parameters: on a mesh, a parameter may be TRIREME_PLACEMENT_TIED along "pipeline". Ranks
 * whose stages use it register it by one name; the other ranks along the axis do not have it. Each
 * of its ranks holds a copy with its own optimizer state.
 * - A trainer with a pipeline adds up the gradients of all its uses: for each leaf in the order of
 *   layers, as one process adds the names of a tied parameter. Without leaves each rank adds its
 *   micro-batches first.
 * - All copies get the same gradient and the same update, so they keep equal bits.
 * - Further uses on a rank are aliases (`tied_to`) there. One rank may have all uses.
 * - trireme_model_seal() compares the parameter along the axis: type, shape, placements and group,
 *   and the options that shared parameters compare. A difference is a MISMATCH. A parameter that no
 *   other rank holds and that has no alias is INVALID_ARGUMENT: its name is wrong somewhere.
 * - The first step of a trainer, trireme_model_check_replicas() and check_every compare the copies.
 * - Its unit is gathered and reduced alone. Give it a unit of its own: other gradients of that unit
 *   wait until the end of the step with it, and none of them may be SHARED.
 * - It may be SPLIT or WHOLE along "tensor", and not SHARED.
 * - It does not go with TRIREME_MODEL_FLAG_UNEVEN, TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD, or a
 *   backward pass that no trainer with a pipeline makes: the caller adds up the gradients then.
 *
 * Whole gradients: ranks that hold a parameter TRIREME_PLACEMENT_WHOLE hand in the same gradient,
 * bit for bit. The first three steps of an optimizer compare it along the axis, and so does each
 * step of check_every. A difference is a MISMATCH that names the parameter and the ranks, such as
 * where a sum over the axis was forgotten. No parameter has changed then. Models with such
 * parameters step together.
 * - Kernels of the ranks may give other bits, such as sums with atomic additions. Then make the
 *   parameter SHARED, and each rank hands in its part of the gradient. Or one rank makes the
 *   gradient and broadcasts it along the axis.
 * - trireme_model_seal() compares the same options as for shared parameters.
 * - TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD and TRIREME_OPTIMIZER_FLAG_ONE_SWEEP keep no reduced
 *   gradient to compare.
 *
 * Ownership: the call that takes a string or an array copies it. Thread safety: plain data.
 */
#ifndef TRIREME_MODEL_OPTIONS_H
#define TRIREME_MODEL_OPTIONS_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/offload.h>
#include <trireme/rules.h>
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
     * Groups of shards.ranks ranks shard the parameters (HSDP). All ranks shard the gradients and
     * the optimizer state.
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
     * They count as zero where another rank or pass has one. A parameter without any gradient in
     * the step is not updated. Such a step does not count for the bias corrections of its rule. The
     * ranks agree in the step which parameters these are.
     */
    TRIREME_UNUSED_SKIP = 2
};

/** Whether the ranks of a host share one copy of the parameters. */
enum {
    /** zero3 and hybrid_shard share, if the ranks of the communicator share memory. */
    TRIREME_SHARE_AUTO = 0,
    /**
     * zero1 and zero2 share, too. data_parallel refuses it. If sharing is not possible,
     * trireme_model_create() fails, or trireme_model_seal() where the ranks must have met. A rank
     * that holds a whole copy alone (a world of 1, or shards.ranks 1) has no peer to share with.
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
     * Only for zero3 and hybrid_shard: a gathered unit stays whole after its release until the
     * parameters change. So a step gathers each unit once and not twice. Another micro-batch or an
     * evaluation does not gather it again. Working memory then holds all units. Where ranks share
     * the parameters, the flag has no effect.
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

/** A stretch of one parameter inside a bucket. Its size is part_bytes of the bucket. */
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
    int32_t moment;
    /** Number of the bucket, from 0 in the order of reduction of the first step. */
    uint64_t bucket;
    /** Elements at `data`. */
    uint64_t count;
    /** The gradients. The hook may change them until it returns. */
    void *data;
    /** `part_count` stretches of parameters, in the order of `data`, part_bytes apart. */
    const trireme_bucket_part *parts;
    /** Number of parts. */
    uint64_t part_count;
    /**
     * sizeof(trireme_bucket_part) as the library knows it. Part i begins i * part_bytes bytes
     * behind the first one.
     */
    uint64_t part_bytes;
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
typedef int32_t(TRIREME_CALLCONV *trireme_bucket_callback)(const trireme_bucket *bucket,
                                                           void *user_data);

/** When gradients are reduced. Start from TRIREME_BUCKET_OPTIONS_INIT. */
typedef struct trireme_bucket_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /**
     * Gradients are reduced once this many bytes are ready; 1 or more. A unit group is never cut.
     * Default: 25 MiB.
     */
    uint64_t bytes;
    /**
     * As `bytes`, for the bucket that backward fills first. A small one begins the exchange early.
     * Default: 1 MiB, or `bytes` if that is less.
     */
    uint64_t first_bytes;
    /**
     * Called for each bucket. All ranks have one or none has. It stays in use until the model, its
     * optimizer and its trainers are destroyed. Default: NULL, none.
     */
    trireme_bucket_callback hook;
    /** Handed to `hook`, and in use as long. Default: NULL. */
    void *user_data;
} trireme_bucket_options; /* since 1.0 */

/** Options with all defaults. */
#define TRIREME_BUCKET_OPTIONS_INIT TRIREME_INIT(trireme_bucket_options)

/**
 * How units are gathered for use. Start from TRIREME_UNIT_OPTIONS_INIT.
 *
 * Only zero3 and hybrid_shard gather units. The other strategies refuse reshard_ranks, and the
 * other fields have no effect there.
 */
typedef struct trireme_unit_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /**
     * This many neighbouring ranks keep each unit spread between them after its first gather. It
     * must divide the number of ranks that keep a copy. See "Resharding" at the top of this file.
     * Default: 0, each gather comes from all ranks that keep a copy.
     */
    uint32_t reshard_ranks;
    /**
     * Neighbouring units are gathered together, as one unit group, until they have this many bytes.
     * 1 joins none. Default: 1 MiB.
     */
    uint64_t minimum_bytes;
    /**
     * Units below this many bytes are persistent: they stay whole on every rank and need no gather.
     * Default: 0, no unit is persistent.
     */
    uint64_t persistent_bytes;
    /**
     * Bytes that gathered unit groups may take beyond those of the largest one. Default: the bytes
     * of the largest one, so that one unit group is prefetched.
     */
    uint64_t prefetch_bytes;
} trireme_unit_options; /* since 1.0 */

/** Options with all defaults. */
#define TRIREME_UNIT_OPTIONS_INIT TRIREME_INIT(trireme_unit_options)

/**
 * The ranks that keep a copy of the parameters between them. Start from TRIREME_SHARD_OPTIONS_INIT.
 */
typedef struct trireme_shard_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /**
     * hybrid_shard: S, the ranks that keep one copy between them. S divides the world size. Must be
     * 0 for other strategies. Default: 0, the ranks of a host. All hosts then need equally many
     * ranks, neighbours each; else trireme_model_seal() answers INVALID_ARGUMENT.
     */
    uint32_t ranks;
    /**
     * hybrid_shard: the ranks of a copy are this far apart. Above 1 it needs `ranks`, and ranks *
     * stride divides the world size. World size / ranks suits a copy with one rank on each host.
     * Must be 0 for other strategies. Default: 1, neighbours.
     */
    uint32_t stride;
    /** Whether the ranks of a host share one copy: TRIREME_SHARE_*. Default: TRIREME_SHARE_AUTO. */
    int32_t share;
} trireme_shard_options; /* since 1.0 */

/** Options with all defaults. */
#define TRIREME_SHARD_OPTIONS_INIT TRIREME_INIT(trireme_shard_options)

/** Start from TRIREME_MODEL_OPTIONS_INIT. In every field 0 or NULL means the default. */
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
    /** Gradients that are not handed in: TRIREME_UNUSED_*. Default: TRIREME_UNUSED_ERROR. */
    int32_t unused;
    /** 0 or a sum of TRIREME_MODEL_FLAG_*. Default: 0. */
    uint32_t flags;
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
    trireme_rule_kind planned_rule;
    /**
     * Most bytes that any rank may plan to hold. Above it trireme_model_seal() and
     * trireme_optimizer_create() fail with TRIREME_ERROR_OUT_OF_MEMORY on all ranks, before
     * anything is allocated. See "Memory limit" at the top of this file. Default: 0, no limit.
     */
    uint64_t memory_limit_bytes;
    /** Longest that any call may wait, in nanoseconds. Default: the communicator's. */
    uint64_t timeout_ns;
    /** When gradients are reduced. Default: NULL, the defaults of its fields. */
    const trireme_bucket_options *buckets;
    /** How units are gathered for use. Default: NULL, the defaults of its fields. */
    const trireme_unit_options *units;
    /**
     * The ranks that keep a copy of the parameters between them. Default: NULL, the defaults of its
     * fields.
     */
    const trireme_shard_options *shards;
    /**
     * zero3, hybrid_shard: a file of parameters. See "Parameters in a file" in model.h. All ranks
     * have one or none has. Not with TRIREME_SHARE_ALWAYS; TRIREME_SHARE_AUTO shares nothing then.
     * Default: NULL, parameters stay in memory.
     */
    const trireme_offload_options *offload;
} trireme_model_options; /* since 1.0 */

/** Options that lack only the strategy. */
#define TRIREME_MODEL_OPTIONS_INIT TRIREME_INIT(trireme_model_options)

/** Flags of a parameter. */
enum {
    /** The parameter is gathered with its unit, but has no gradient and is not updated. */
    TRIREME_PARAMETER_FLAG_FROZEN = 1
};

/** How a parameter lies on an axis of a mesh. 0 is none. */
typedef int32_t trireme_placement;

/** Numbers of the placements. */
enum {
    /**
     * Every rank along the axis holds the same parameter and hands in its whole gradient. The
     * library does not add the gradients up along the axis. It compares them: see "Whole gradients"
     * at the top of this file. A norm counts the parameter once.
     */
    TRIREME_PLACEMENT_WHOLE = 1,
    /**
     * Every rank along the axis holds the same parameter, and its gradient is a summand. The
     * library adds the gradients up along the axis. See "Shared parameters" at the top of this
     * file. A norm counts the parameter once.
     */
    TRIREME_PLACEMENT_SHARED = 2,
    /**
     * Every rank along the axis holds a part of one dimension of the parameter. Stochastic rounding
     * takes the numbers of elements in the whole. See "Split parameters" at the top of this file.
     */
    TRIREME_PLACEMENT_SPLIT = 3,
    /**
     * Along "pipeline": the stages of some ranks share the parameter, such as an embedding and the
     * head of a language model. Each of these ranks registers it, by the same name. See "Tied
     * parameters" at the top of this file. A norm counts the parameter once.
     */
    TRIREME_PLACEMENT_TIED = 4
};

/**
 * The placement of a parameter on one axis of a mesh. Start from TRIREME_PARAMETER_PLACEMENT_INIT.
 *
 * It is for the axes along which each rank has a model of its own. Without a placement there, each
 * rank along the axis holds a parameter of its own.
 */
typedef struct trireme_parameter_placement {
    /** sizeof this struct as the caller knows it; the same in all of a list. */
    uint32_t struct_size;
    /** A TRIREME_PLACEMENT_*. Required. */
    trireme_placement kind;
    /** Name of the axis, such as "tensor". Required. */
    const char *axis;
    /**
     * SPLIT: the dimension that is cut, from 0. At most one axis cuts a dimension. Must be 0
     * otherwise. Default: 0.
     */
    uint32_t dimension;
    /** Must be 0. */
    uint32_t reserved;
    /** SPLIT: extent of the dimension in the whole parameter. Must be 0 otherwise. Default: 0. */
    uint64_t extent;
    /**
     * SPLIT: the indices of the dimension that this rank holds, as pairs of numbers: the first
     * index of a stretch in the whole, and its length. They have the order in which they lie here,
     * and add up to `shape` of the dimension. A fused matrix of queries, keys and values has three.
     * Copied. Default: NULL, no index, for a rank that holds nothing. Must be NULL otherwise.
     */
    const uint64_t *stretches;
    /** Pairs at `stretches`; at most 65,536. Default: 0. */
    uint64_t stretch_count;
} trireme_parameter_placement; /* since 1.0 */

/** A placement that is described by nothing yet. */
#define TRIREME_PARAMETER_PLACEMENT_INIT TRIREME_INIT(trireme_parameter_placement)

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
    /**
     * Extents of the dimensions; copied. An extent may be 0. All parameters of a model have at most
     * 2^48 elements. Default: NULL, for a scalar. Required otherwise.
     */
    const uint64_t *shape;
    /** Unique in the model; UTF-8, at most 255 bytes; copied. Required. */
    const char *name;
    /**
     * Name of the unit; UTF-8, at most 255 bytes; copied. The caller adds the parameters of one
     * unit one after the other. An alias belongs to the unit of the parameter it is tied to: leave
     * it NULL or name that unit. Default: NULL, a unit of the parameter's own name.
     */
    const char *unit;
    /**
     * Name of an earlier parameter that this one is an alias of. Both have the same dtype, shape,
     * flags and memory. Gradients are added in the order of registration. Default: NULL, no alias.
     */
    const char *tied_to;
    /**
     * Number of models that hold this same parameter, such as a layer norm that every
     * tensor-parallel rank has. An optimizer with norm_ranks counts it once. Default: what
     * `placements` tell, else 1; for an alias, the number of the parameter it is tied to.
     */
    uint32_t replicas;
    /**
     * Number of the parameter's group in `groups` of an optimizer's options; 0 without such groups.
     * A parameter of several replicas has the same group in all models. Default: 0; for an alias,
     * the group of the parameter it is tied to.
     */
    uint32_t parameter_group;
    /**
     * The parameter's placements on axes of the model's mesh, each axis once; copied. Only for a
     * model of trireme_mesh_create_model(). Default: NULL, none; for an alias, those of the
     * parameter it is tied to.
     */
    const trireme_parameter_placement *placements;
    /** Placements at `placements`; at most 16. Default: 0, none. */
    uint64_t placement_count;
} trireme_parameter_options; /* since 1.0 */

/** A parameter that is described by nothing yet. */
#define TRIREME_PARAMETER_OPTIONS_INIT TRIREME_INIT(trireme_parameter_options)

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
    /** Unit groups, those of persistent units included. */
    uint64_t unit_groups;
    /** Bytes of the copy of the parameters that ranks share; 0 if every rank has its own memory. */
    uint64_t shared_bytes;
} trireme_model_info; /* since 1.0 */

/** Info ready for trireme_model_get_info(). */
#define TRIREME_MODEL_INFO_INIT TRIREME_INIT(trireme_model_info)

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
     * Elements of the unit that this rank owns. The rank's shard of the unit group may lie in
     * other units.
     */
    uint64_t shard_count;
    /** Where the unit begins in the flat vectors. */
    uint64_t flat_first;
    /** Number of its unit group, from 0. */
    uint64_t unit_group;
} trireme_unit_info; /* since 1.0 */

/** Info ready for trireme_model_get_unit_info(). */
#define TRIREME_UNIT_INFO_INIT TRIREME_INIT(trireme_unit_info)

/**
 * Bytes of this rank by kind: as planned, and as really allocated. Set struct_size before the call.
 */
typedef struct trireme_model_memory {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Always 0. */
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
     * Bytes of gradients and parameters that this rank gives its peers in a step of one
     * micro-batch. zero3 gathers each unit twice, the second time from units.reshard_ranks; with
     * TRIREME_MODEL_FLAG_KEEP_GATHERED once. TRIREME_RULE_MUON adds its directions.
     */
    uint64_t planned_step_bytes;
    /**
     * Bytes of that kind that this rank gave between the ends of the last two steps, counted where
     * they are sent.
     */
    uint64_t sent_step_bytes;
} trireme_model_memory; /* since 1.0 */

/** A report ready for trireme_model_get_memory(). */
#define TRIREME_MODEL_MEMORY_INIT TRIREME_INIT(trireme_model_memory)

/**
 * Counts of the model's calls on this rank since it was sealed. Set struct_size before the call.
 */
typedef struct trireme_model_statistics {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Always 0. */
    uint32_t reserved;
    /** Optimizer steps, with those that trireme_optimizer_join() followed. */
    uint64_t steps;
    /** Unit groups that this rank gathered from their owners. */
    uint64_t gathers;
    /** Those of `gathers` that began before the caller asked for them. */
    uint64_t prefetched;
    /** Buckets that were reduced, once for each pass. */
    uint64_t reductions;
    /** Most unit groups that were whole, or on their way, at one time. */
    uint64_t peak_unit_groups;
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
     * Buckets that are now reduced at another place than in the first step, because rank 0 had
     * their gradients in another order.
     */
    uint64_t moved_buckets;
    /** Those of `gathers` that came from units.reshard_ranks ranks only. */
    uint64_t reshard_gathers;
} trireme_model_statistics; /* since 1.0 */

/** A report ready for trireme_model_get_statistics(). */
#define TRIREME_MODEL_STATISTICS_INIT TRIREME_INIT(trireme_model_statistics)

TRIREME_END_C

#endif
