/**
 * @file parallel.h
 * @brief All ways of parallel training in one object: data, shard, tensor, pipeline, context,
 * expert.
 *
 * A parallel object arranges the ranks of a communicator along six axes. It makes the communicators
 * of the axes, the tensor object and the schedule of the pipeline. Models on it know what lies
 * where. docs/parallel.md tells which layout suits which job.
 *
 * Axes, and what the ranks along each of them do:
 * - data: each has the whole model, and rows of its own.
 * - shard: they keep one model between them, and each has rows of its own.
 * - tensor: they split each layer (tensor.h), and have the same rows.
 * - pipeline: they have other layers (pipeline.h), and the same rows.
 * - context: they split the positions of a sequence (context.h), and have the same rows.
 * - expert: each has other experts of a layer, and rows of its own. Ranks along expert hold all
 *   other parameters alike, as ranks along data do.
 *
 * So rows are shared out among the ranks along data, shard and expert: the readers. A reader's
 * number is (data * shards + shard) * experts + expert.
 *
 * Gradients are added up over two groups:
 * - TRIREME_PARALLEL_GROUP_GRADIENTS: data, shard, context and expert. For all parameters but
 *   experts.
 * - TRIREME_PARALLEL_GROUP_EXPERT_GRADIENTS: data, shard and context. For experts: other ranks
 *   along expert have other ones.
 *
 * Numbers: tensor is fastest, then context, expert, shard, data, pipeline, as with
 * TRIREME_MESH_ORDER_BY_NAME. So ranks that exchange much are near each other.
 *
 * Failures: the object has a group of all its ranks. If a rank dies, every call that waits on any
 * communicator of the object fails with PEER_LOST. The message names the rank by its number in the
 * object, or in the communicator of the call. So a death along one axis ends the waits along all.
 *
 * Ownership: trireme_parallel_create() creates an object, and trireme_parallel_destroy() destroys
 * it. Communicators of trireme_parallel_get_communicator() belong to it. All other handles that
 * functions here give belong to the caller. Models and tensor objects work as long as the parallel
 * object lives. Once it exists, the caller may destroy its own communicator.
 *
 * Thread safety: every function here may run on any thread concurrently with other calls on the
 * same object. All ranks must make collective calls in the same order.
 */
#ifndef TRIREME_PARALLEL_H
#define TRIREME_PARALLEL_H

#include <stdint.h>
#include <trireme/communicator.h>
#include <trireme/export.h>
#include <trireme/model_options.h>
#include <trireme/pipeline.h>
#include <trireme/status.h>
#include <trireme/tensor.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** Ranks along six axes, with everything that training on them needs. */
typedef struct trireme_parallel trireme_parallel;

/** Number of the axes. Coordinates stand in the order of the bits below. */
#define TRIREME_PARALLEL_AXES 6

/** Axes, as bits that may be added up, and the groups of gradients. */
enum {
    /** Copies of the model. */
    TRIREME_PARALLEL_AXIS_DATA = 1,
    /** Ranks that keep one copy of the model between them. */
    TRIREME_PARALLEL_AXIS_SHARD = 2,
    /** Ranks that split layers. */
    TRIREME_PARALLEL_AXIS_TENSOR = 4,
    /** Ranks with other layers. */
    TRIREME_PARALLEL_AXIS_PIPELINE = 8,
    /** Ranks that split positions. */
    TRIREME_PARALLEL_AXIS_CONTEXT = 16,
    /** Ranks with other experts. */
    TRIREME_PARALLEL_AXIS_EXPERT = 32,
    /** Data, shard, context and expert: gradients of all parameters but experts. */
    TRIREME_PARALLEL_GROUP_GRADIENTS = 51,
    /** Data, shard and context: gradients of experts. */
    TRIREME_PARALLEL_GROUP_EXPERT_GRADIENTS = 19,
    /** All axes. */
    TRIREME_PARALLEL_GROUP_ALL = 63
};

/** Sizes of an axis. */
enum {
    /** The axis gets the ranks that the others leave. */
    TRIREME_PARALLEL_REST = -1
};

/** The parameters of a model: all but experts, or experts. */
typedef int32_t trireme_parallel_contents;

/** Numbers of the contents. */
enum {
    /** Parameters that ranks along expert have in common. */
    TRIREME_PARALLEL_CONTENTS_COMMON = 0,
    /** Experts: each rank along expert has other ones. */
    TRIREME_PARALLEL_CONTENTS_EXPERTS = 1
};

/**
 * A layout. Start from TRIREME_PARALLEL_OPTIONS_INIT. More than 16 fields: six are sizes of axes,
 * which callers read and write side by side.
 */
typedef struct trireme_parallel_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /**
     * Ranks along data. Here and below: the default 0 means 1 rank. One size may be
     * TRIREME_PARALLEL_REST. The product of the sizes is the world size.
     */
    int32_t data;
    /** Ranks along shard. */
    int32_t shard;
    /** Ranks along tensor. */
    int32_t tensor;
    /** Ranks along pipeline. */
    int32_t pipeline;
    /** Ranks along context. */
    int32_t context;
    /** Ranks along expert. */
    int32_t expert;
    /**
     * Micro-batches of a step for each reader. Default: 0, which means those of schedule_text, or 1
     * without a pipeline. Required with another pipeline.
     */
    uint32_t micro_batches;
    /** Stages of each rank along pipeline. Default: 0, which means those of the text, or 1. */
    uint32_t stages_per_rank;
    /**
     * The schedule. BEST needs `costs`. Must be 0 without a pipeline, and with schedule_text.
     * Default: 0, which means 1F1B, or INTERLEAVED if ranks have several stages.
     */
    trireme_pipeline_order order;
    /** BEST: where stages lie, LOOP, V or WAVE. Else 0, or the one of the order. Default: 0. */
    trireme_pipeline_placement placement;
    /**
     * A schedule as text or CSV (trireme_pipeline_schedule_parse()). It ends with 0. It is checked.
     * Default: NULL, the one of `order`.
     */
    const char *schedule_text;
    /** Times and bytes of each stage. Default: NULL, which means equal times and no bytes. */
    const trireme_pipeline_costs *costs;
    /**
     * Bytes of activations that each rank along pipeline may keep. With `costs` the schedule has to
     * be within it. trireme_parallel_partition() makes stages that are. Default: 0, any.
     */
    uint64_t activation_limit_bytes;
    /**
     * How ranks along tensor split extents. Default: NULL, which means no tensor object with 1 rank
     * along tensor, and the defaults with more.
     */
    const trireme_tensor_options *tensor_options;
    /** Longest that the creation may wait, in nanoseconds. Default: the communicator's timeout. */
    uint64_t timeout_ns;
} trireme_parallel_options; /* since 1.0 */

/** Every axis has 1 rank. */
#define TRIREME_PARALLEL_OPTIONS_INIT TRIREME_INIT(trireme_parallel_options)

/**
 * Where a rank is, and what is around it. Set struct_size before the call. More than 16 fields:
 * they describe one rank, and are told at once.
 */
typedef struct trireme_parallel_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Ranks of the object. */
    int32_t world_size;
    /** This rank's number among them. */
    int32_t rank;
    /** Ranks along data. */
    int32_t data;
    /** Ranks along shard. */
    int32_t shard;
    /** Ranks along tensor. */
    int32_t tensor;
    /** Ranks along pipeline. */
    int32_t pipeline;
    /** Ranks along context. */
    int32_t context;
    /** Ranks along expert. */
    int32_t expert;
    /** This rank's coordinate on data. */
    int32_t data_rank;
    /** This rank's coordinate on shard. */
    int32_t shard_rank;
    /** This rank's coordinate on tensor. */
    int32_t tensor_rank;
    /** This rank's coordinate on pipeline. */
    int32_t pipeline_rank;
    /** This rank's coordinate on context. */
    int32_t context_rank;
    /** This rank's coordinate on expert. */
    int32_t expert_rank;
    /** Ranks with rows of their own: data * shard * expert. */
    int32_t readers;
    /** This rank's number among them. */
    int32_t reader;
    /** Ranks of TRIREME_PARALLEL_GROUP_GRADIENTS. */
    int32_t gradient_ranks;
    /** Ranks of TRIREME_PARALLEL_GROUP_EXPERT_GRADIENTS. */
    int32_t expert_gradient_ranks;
    /** Micro-batches of a step for each reader. */
    uint32_t micro_batches;
    /** Stages of all ranks along pipeline; 1 without a pipeline. */
    uint32_t stages;
    /** Stages of this rank. */
    uint32_t own_stages;
    /** 1 if this rank has the first stage, which reads the rows. */
    uint32_t has_first_stage;
    /** 1 if this rank has the last stage, which computes the loss. */
    uint32_t has_last_stage;
    /** 1 if there is a tensor object. */
    uint32_t has_tensor;
    /**
     * The order of the schedule. BEST: the order that the search began with. 0 without a pipeline,
     * and for a text.
     */
    trireme_pipeline_order order;
    /**
     * The most micro-batches that this rank keeps activations of, each stage counted: from F until
     * W, or from R if the schedule recomputes them. 1 without a pipeline.
     */
    uint64_t kept_micro_batches;
    /**
     * Time of a step, as trireme_pipeline_step_report has it, with the costs of the options.
     * Without costs a stage's F, I and W take 1 each, divided by the stages of a rank. 0 without a
     * pipeline.
     */
    double makespan;
    /** The longest time from a rank's first action to its last one, likewise. */
    double span;
    /** The part of the time in which ranks wait, likewise. */
    double bubble;
} trireme_parallel_info; /* since 1.0 */

/** An info ready for trireme_parallel_get_info(). */
#define TRIREME_PARALLEL_INFO_INIT TRIREME_INIT(trireme_parallel_info)

/**
 * Arranges the ranks of a communicator along six axes, and makes all that belongs to them.
 *
 * Collective: blocks until all ranks have met. All ranks give the same options; only `timeout_ns`,
 * and the provider of products in `tensor_options`, may differ. A rank whose options are wrong
 * fails with its reason, and the others fail with its status and number. Keeps no pointer into
 * `options`, but for user_data of the provider. The object is a child of the
 * communicator (communicator.h): if the communicator fails, so does the object. The caller may
 * destroy the communicator afterwards.
 *
 * @param communicator  All ranks.
 * @param options       The layout. Required.
 * @param[out] out_parallel  The new object; free it with trireme_parallel_destroy(). Not written on
 *                      failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL. Or a size is negative, two are
 * TRIREME_PARALLEL_REST, or their product is not the world size. Or a pipeline has no
 * micro-batches, or the order does not have so many stages a rank. Or a schedule is set without a
 * pipeline, or is set twice. Or the text is no schedule, or of other sizes, or costs or
 * tensor_options are wrong.
 * @retval TRIREME_ERROR_INVALID_STATE  The schedule cannot run, or keeps more bytes than
 * activation_limit_bytes. The message names the rank along pipeline and the action. Or this is a
 * completion callback of the communicator. Or as for trireme_tensor_create().
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library. Or MPI, or a
 * transport of the caller's, moves the bytes of the ranks. Or as for trireme_tensor_create().
 * @retval TRIREME_ERROR_MISMATCH  Ranks gave different options; names the field and both values, or
 * the first action that differs. Or ranks called different things.
 * @retval TRIREME_ERROR_TIMEOUT  The deadline passed; names the ranks that are missing.
 * @retval TRIREME_ERROR_PEER_LOST  A rank died or left; names it.
 * @retval TRIREME_ERROR_ABORTED  The communicator was aborted.
 * @retval TRIREME_ERROR_SYSTEM  A rank could not make a socket, thread or mapping; names it.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out on a rank.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_parallel_create(trireme_communicator *communicator, const trireme_parallel_options *options,
                        trireme_parallel **out_parallel);

/**
 * Leaves the communicators of the object and destroys the handle.
 *
 * Never waits for a peer. Handles of trireme_parallel_get_communicator() are stale afterwards.
 * Those of trireme_parallel_create_communicator() live on.
 *
 * @param parallel  An object; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_parallel_destroy(trireme_parallel *parallel);

/**
 * Tells sizes, this rank's coordinates and stages, and figures of the schedule.
 *
 * Does not block.
 *
 * @param parallel   The object.
 * @param[out] info  Where to write it. Only struct_size is read.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live parallel object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `info` is NULL, or its struct_size is too small.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_parallel_get_info(const trireme_parallel *parallel, trireme_parallel_info *info);

/**
 * Gives a rank's place on every axis.
 *
 * Does not block.
 *
 * @param parallel  The object.
 * @param rank      A rank of the object.
 * @param[out] out_coordinates  Data, shard, tensor, pipeline, context, expert. Not written on
 *                  failure.
 * @param capacity  Numbers that fit in out_coordinates; at least TRIREME_PARALLEL_AXES.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live parallel object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_coordinates is NULL, or a number is out of range.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_parallel_get_coordinates(
    const trireme_parallel *parallel, int32_t rank, int32_t *out_coordinates, uint64_t capacity);

/**
 * Gives the rank with these coordinates.
 *
 * Does not block.
 *
 * @param parallel     The object.
 * @param coordinates  Data, shard, tensor, pipeline, context, expert.
 * @param count        Must be TRIREME_PARALLEL_AXES.
 * @param[out] out_rank  A rank of the object. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live parallel object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or a number is out of range.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_parallel_get_rank(const trireme_parallel *parallel, const int32_t *coordinates,
                          uint64_t count, int32_t *out_rank);

/**
 * Gives a communicator that the object has made: of one axis, of TRIREME_PARALLEL_GROUP_GRADIENTS,
 * of TRIREME_PARALLEL_GROUP_EXPERT_GRADIENTS or of all ranks. Its ranks are in ascending order.
 * Axes of 1 rank count for nothing: with data alone, data and all axes give the same communicator.
 * If the communicator of all ranks fails or is aborted, so do all others of the object.
 *
 * Does not block. Every call gives the same handle.
 *
 * @param parallel  The object.
 * @param axes      Bits of TRIREME_PARALLEL_AXIS_*, or a TRIREME_PARALLEL_GROUP_*.
 * @param[out] out_communicator  The communicator of this rank. It belongs to the object and ends
 * with it; do not destroy it. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live parallel object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_communicator is NULL, `axes` is 0 or has an unknown
 *                  bit. Or the object has not made one for these axes together:
 *                  trireme_parallel_create_communicator() does.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_parallel_get_communicator(
    const trireme_parallel *parallel, uint32_t axes, trireme_communicator **out_communicator);

/**
 * Makes a communicator over any axes together. It is the caller's, and lives on without the object.
 *
 * Collective over all ranks of the object: blocks until all have met. A rank whose arguments are
 * wrong fails with its reason, and the others fail with its status and number. The ranks of the
 * communicator are in ascending order. Keeps no pointer.
 *
 * @param parallel  The object.
 * @param axes      Bits of TRIREME_PARALLEL_AXIS_*, the same on all ranks.
 * @param options   Name and deadline; NULL for the defaults.
 * @param[out] out_communicator  The new communicator; free it with trireme_communicator_destroy().
 *                  Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live parallel object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, `axes` is 0 or has an unknown bit, or
 * an option is out of range.
 * @retval TRIREME_ERROR_INVALID_STATE  This is a completion callback of a communicator of all
 * ranks.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @retval TRIREME_ERROR_MISMATCH  Ranks gave different axes, or called different things.
 * @retval TRIREME_ERROR_TIMEOUT  The deadline passed; names the ranks that are missing.
 * @retval TRIREME_ERROR_PEER_LOST  A rank died or left; names it.
 * @retval TRIREME_ERROR_ABORTED  A communicator of all ranks was aborted.
 * @retval TRIREME_ERROR_SYSTEM  A rank could not make a socket, thread or mapping; names it.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out on a rank.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_parallel_create_communicator(
    const trireme_parallel *parallel, uint32_t axes, const trireme_child_options *options,
    trireme_communicator **out_communicator);

/**
 * Begins the description of a model: as trireme_mesh_create_model() on the axes of the object.
 *
 * COMMON spreads it over data, shard, context and expert. EXPERTS spreads it over data, shard and
 * context, and ranks along expert have models of their own, as along tensor and pipeline.
 *
 * Local: does not wait for the peers. Keeps no pointer into `options`. All ranks make these calls
 * in one order, with the same contents. With 1 rank along expert, other contents on a rank are
 * MISMATCH when the model is sealed. With more, other ranks meet there: they get MISMATCH, or wait
 * for each other until the deadline and get TIMEOUT.
 *
 * Averages: ranks along context see parts of the same rows. So each hands in the gradient of the
 * mean loss over its own positions, and has as many of them as the others. An expert's gradient has
 * summands of rows of all ranks along expert, but a rank cannot tell how many. So EXPERTS with
 * several of them takes TRIREME_GRADIENTS_SUM alone. Multiply their gradients by 1 / gradient_ranks
 * of the info, as the average of COMMON does. With `leaves` that divides by its leaves, so multiply
 * by 1 / (leaves of COMMON).
 *
 * Leaves: with readers * micro_batches parts of a batch, COMMON has parts * context leaves. EXPERTS
 * has parts * context / expert leaves, as its ranks along expert have models of their own.
 *
 * @param parallel  The object.
 * @param contents  TRIREME_PARALLEL_CONTENTS_*.
 * @param options   How to spread the model. Required.
 * @param[out] out_model  The new model; free it with trireme_model_destroy(). Not written on
 * failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live parallel object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  As for trireme_mesh_create_model(). Or `contents` is
 *                  unknown. Or it is EXPERTS with several ranks along expert, and
 *                  options.gradients is not TRIREME_GRADIENTS_SUM.
 * @retval TRIREME_ERROR_UNSUPPORTED  As for trireme_model_create().
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_parallel_create_model(const trireme_parallel *parallel, trireme_parallel_contents contents,
                              const trireme_model_options *options, trireme_model **out_model);

/**
 * Gives the tensor object of the ranks along tensor.
 *
 * Does not block. Every call gives a new handle of the same object.
 *
 * @param parallel  The object.
 * @param[out] out_tensor  Free it with trireme_tensor_destroy(). Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live parallel object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_tensor is NULL.
 * @retval TRIREME_ERROR_INVALID_STATE  There is 1 rank along tensor, and the options had no
 *                  tensor_options.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_parallel_get_tensor(const trireme_parallel *parallel, trireme_tensor **out_tensor);

/**
 * Gives the schedule of the pipeline. All rules of trireme_pipeline_rule hold.
 *
 * Does not block. Every call gives a new handle of the same schedule.
 *
 * @param parallel  The object.
 * @param[out] out_schedule  Free it with trireme_pipeline_schedule_destroy(). Not written on
 * failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live parallel object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_schedule is NULL.
 * @retval TRIREME_ERROR_INVALID_STATE  There is 1 rank along pipeline.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_parallel_get_schedule(
    const trireme_parallel *parallel, trireme_pipeline_schedule **out_schedule);

/**
 * Tells the stages of a rank along pipeline, ascending. Without a pipeline rank 0 has stage 0.
 *
 * Does not block.
 *
 * @param parallel       The object.
 * @param pipeline_rank  A coordinate on pipeline.
 * @param[out] stages    The first `capacity` stages. NULL if capacity is 0.
 * @param capacity       Stages that fit there.
 * @param[out] out_count  All stages of the rank.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live parallel object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or the coordinate is out of range.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_parallel_get_stages(const trireme_parallel *parallel, int32_t pipeline_rank,
                            uint32_t *stages, uint64_t capacity, uint64_t *out_count);

/**
 * Gives the rank that has a stage of this rank's pipeline: it differs from this rank on pipeline
 * alone.
 *
 * Does not block.
 *
 * @param parallel  The object.
 * @param stage     A stage.
 * @param[out] out_rank  A rank of the object. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live parallel object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_rank is NULL, or there is no such stage.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_parallel_get_stage_rank(
    const trireme_parallel *parallel, uint32_t stage, int32_t *out_rank);

/**
 * Cuts layers into the stages of the pipeline, as trireme_partition(). Stage s has the layers from
 * cuts[s] up to, but without, cuts[s+1]. Without a pipeline there is one stage with all layers.
 *
 * Collective over all ranks of the object, which give equally many layers. Blocks until they have
 * met. Of each number of a layer the largest one of all ranks counts. So a rank may give 0 for
 * layers that it has not measured. All ranks get the same cuts, and compare them.
 *
 * With activation_limit_bytes no rank keeps more than that: a layer's kept_bytes count from F until
 * W of each micro-batch, in the order of the schedule. If it recomputes them they count from R on,
 * and what F keeps for R counts for nothing. With several stages a rank, the fastest cuts
 * are made first, and are refused if they need more.
 *
 * @param parallel     The object.
 * @param layers       Costs of the layers, in order. `bytes` must be 0: the object has no limit of
 *                     parameters.
 * @param layer_count  Layers, 1 to 65,536. Each stage has one at least.
 * @param[out] cuts    The first layer of each stage, and layer_count. Not written on failure.
 * @param cut_count    Numbers at `cuts`: the stages of all ranks, and 1.
 * @param[out] out_seconds  The time of the slowest stage, or of the slowest rank along V and WAVE.
 *                     NULL: not told. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live parallel object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  As for trireme_partition(), or `bytes` of a layer are
 * set, on this rank or another one. Or no cut is within activation_limit_bytes, or the fastest one
 * is not.
 * @retval TRIREME_ERROR_INVALID_STATE  This is a completion callback of a communicator of all
 * ranks.
 * @retval TRIREME_ERROR_UNSUPPORTED  As for trireme_partition(). Or the stages of a text lie
 * neither as LOOP nor as V nor as WAVE.
 * @retval TRIREME_ERROR_MISMATCH  Ranks gave different numbers of layers, or found different cuts,
 * or called different things.
 * @retval TRIREME_ERROR_TIMEOUT  The deadline passed; names the ranks that are missing.
 * @retval TRIREME_ERROR_PEER_LOST  A rank died or left; names it.
 * @retval TRIREME_ERROR_ABORTED  A communicator of all ranks was aborted.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out on a rank.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_parallel_partition(
    const trireme_parallel *parallel, const trireme_pipeline_layer_costs *layers,
    uint64_t layer_count, uint64_t *cuts, uint64_t cut_count, double *out_seconds);

/**
 * Tells the rows of one of this rank's micro-batches.
 *
 * A global batch of B rows has readers * micro_batches parts of neighbouring rows. Part i has the
 * rows from iB/n up to, but without, (i+1)B/n, rounded down. Micro-batch k of reader r is part
 * k * readers + r. Ranks of one reader have the same rows. So leaf l of a reproducible COMMON model
 * is part l, if context has 1 rank. Leaf k of a rank is the one of its micro-batch k, in COMMON and
 * EXPERTS (trireme_model_get_leaf()).
 *
 * If the parts are of different sizes, a mean of their means is not the mean over all rows.
 *
 * Does not block.
 *
 * @param parallel     The object.
 * @param rows         Rows of the global batch.
 * @param micro_batch  A micro-batch of this rank.
 * @param[out] out_first  The first of its rows. Not written on failure.
 * @param[out] out_count  Its rows; may be 0. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live parallel object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or there is no such micro-batch.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_parallel_get_rows(const trireme_parallel *parallel, uint64_t rows, uint32_t micro_batch,
                          uint64_t *out_first, uint64_t *out_count);

TRIREME_END_C

#endif
