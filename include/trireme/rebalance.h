/**
 * @file rebalance.h
 * @brief Costs of a pipeline's layers as they were measured, and the move of a training to other
 * cuts.
 *
 * The stages of a pipeline take different times, and a step is as fast as its slowest stage. So a
 * program measures, cuts the layers anew, and goes on:
 *
 * - trireme_trainer_get_layer_costs() tells the times and bytes of each layer.
 * - trireme_partition() or trireme_parallel_partition() finds cuts. The program decides whether
 * they are worth it.
 * - Each rank makes a model and an optimizer for the layers that it has by the new cuts.
 * - trireme_parallel_rebalance() moves the training to them.
 * - The program makes a trainer with the new cuts, and destroys the old objects.
 *
 * docs/pipeline.md#rebalancing has an example.
 */
#ifndef TRIREME_REBALANCE_H
#define TRIREME_REBALANCE_H

#include <stdint.h>
#include <trireme/communicator.h>
#include <trireme/export.h>
#include <trireme/optimizer.h>
#include <trireme/status.h>
#include <trireme/trainer.h>

TRIREME_BEGIN_C

/** Times and bytes of one layer. Set struct_size before the call. */
typedef struct trireme_measured_costs {
    /** sizeof this struct as the caller knows it; the same in all of a list. */
    uint32_t struct_size;
    /** 0. */
    uint32_t reserved;
    /** Seconds of `forward` for a micro-batch: the mean of a rank, the largest of all ranks. */
    double forward_seconds;
    /** The same of `backward`. It has the parameters, too, without backward_weight. */
    double input_seconds;
    /** The same of backward_weight. 0 without. */
    double weight_seconds;
    /** Bytes of the layer's parameters, whole. Those that are tied within it count once. */
    uint64_t parameter_bytes;
    /** Bytes that a micro-batch keeps: output_bytes and saved_bytes of the layer. */
    uint64_t kept_bytes;
    /** output_bytes of the layer. */
    uint64_t output_bytes;
} trireme_measured_costs; /* since 1.0 */

/** Costs ready for trireme_trainer_get_layer_costs(). */
#define TRIREME_MEASURED_COSTS_INIT TRIREME_INIT(trireme_measured_costs)

/**
 * Tells the costs of all layers of a pipeline, on all of its ranks.
 *
 * The times are those in the callbacks, without any wait for a peer. They are of the steps since
 * the trainer was created, or since the last call of this function that succeeded. Evaluations do
 * not count. All ranks get the same numbers.
 *
 * Collective over all ranks of the model and of the pipeline: blocks until all have called it, or
 * the deadline of the model passes. Keeps no pointer.
 *
 * @param trainer   A trainer with a pipeline.
 * @param[out] costs  By the layer's number in the whole model. Each one lies costs[0].struct_size
 *                  bytes behind the one before, and has that struct_size. Not written on failure.
 * @param capacity  Layers that fit at `costs`: those of the whole model at least, the last cut.
 * @param[out] out_count  Layers of the whole model. May be NULL. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live trainer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  On this rank or another: `costs` is NULL, its struct_size
 *                  is too small or no multiple of 8, or capacity is below the layers of the model.
 * @retval TRIREME_ERROR_INVALID_STATE  The trainer has no pipeline. Or, on all ranks: no step was
 *                  made since. Or, on this rank or another: a step was begun without the trainer
 *                  and is under way. Or called from inside a callback.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out, on this rank or another.
 * @return Any other status as listed at the top of model.h; the model has failed.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_trainer_get_layer_costs(trireme_trainer *trainer, trireme_measured_costs *costs,
                                uint64_t capacity, uint64_t *out_count);

/** Options of trireme_parallel_rebalance(). Start from TRIREME_REBALANCE_OPTIONS_INIT. */
typedef struct trireme_rebalance_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /**
     * State moves among the ranks that give the same number. All ranks of a model have the same
     * one. With several ranks along tensor it is this rank's place there, since these have models
     * with equal names. Default: 0.
     */
    uint32_t part;
    /**
     * All ranks of the old models and of the new ones: those of a mesh, or
     * TRIREME_PARALLEL_GROUP_ALL. The call makes a group of its own from it. Required.
     */
    trireme_communicator *communicator;
    /** The new cuts, which ranks compare. Default: NULL, they compare what they hold alone. */
    const uint64_t *cuts;
    /** Numbers at `cuts`, at most 262,145. */
    uint64_t cut_count;
    /**
     * Bytes of each of two buffers through which state moves, 64 to 2^40. The same on all ranks.
     * Default: 0, which means 4 MiB.
     */
    uint64_t buffer_bytes;
    /** Deadline of each wait. Default: 0, that of `communicator`. */
    uint64_t timeout_ns;
} trireme_rebalance_options; /* since 1.0 */

/** Options that lack a communicator. */
#define TRIREME_REBALANCE_OPTIONS_INIT TRIREME_INIT(trireme_rebalance_options)

/** Bytes that moved, and the memory for it, on this rank. Set struct_size before the call. */
typedef struct trireme_rebalance_report {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0. */
    uint32_t reserved;
    /** Bytes of state that went to other ranks. */
    uint64_t sent_bytes;
    /** Bytes of state that came from other ranks. */
    uint64_t received_bytes;
    /** Bytes of state that stayed on this rank. */
    uint64_t kept_bytes;
    /** Bytes of both buffers. */
    uint64_t buffer_bytes;
    /**
     * Bytes of both models, of both optimizers and of the buffers, counted where memory is
     * allocated. The old layout's are free once the caller destroys it.
     */
    uint64_t peak_bytes;
} trireme_rebalance_report; /* since 1.0 */

/** A report ready for trireme_parallel_rebalance(). */
#define TRIREME_REBALANCE_REPORT_INIT TRIREME_INIT(trireme_rebalance_report)

/**
 * Moves a training between steps: from models of one layout to models of another one, such as other
 * cuts of a pipeline.
 *
 * `to` gets parameters, frozen ones too, all state of the rule, masters of 16-bit parameters, and
 * all counters. A parameter is known by its name, which is unique over all models of a part.
 * Stochastic rounding draws by the name, too. Until its first step `to` has no gradient norm.
 *
 * The call does not move the schedule of rates, nor what the options say: the caller gives them to
 * `to`.
 *
 * Old and new layouts may differ in cuts, in strategy, and in the number of ranks of each model. A
 * model with `leaves` then goes on with the same bits.
 *
 * Memory: both layouts are there until the caller destroys the old one, as the report tells. A
 * trainer's activations come on top. So destroy the old trainer before the call, and make the new
 * one after it.
 *
 * All or none: the call only reads `from`. If it fails, the old models and optimizers go on as they
 * were. They may not if a rank is lost or late, or if memory or a file fails it in the middle of
 * the move: that may fail groups that both layouts use.
 *
 * After a failure `to` fails on all ranks, if anything of it has changed; destroy it. A rank that
 * is lost in the last exchange may leave some ranks with TRIREME_OK. Their next call of `to` then
 * tells the loss.
 *
 * Collective over all ranks of `communicator`: blocks until it is done, or a deadline passes. A
 * rank whose arguments are wrong fails with its reason, and the others fail with its status and
 * number. Only this rank knows of a bad `communicator` or struct_size. Keeps no pointer.
 *
 * @param from     The optimizer that has made the steps so far. Its trainer may have been
 *                 destroyed.
 * @param to       An optimizer over another model: with the same rule and groups of parameters,
 *                 and the parameters that this rank has by the new cuts. Their values count for
 *                 nothing. No unit of it was gathered since trireme_model_broadcast_parameters().
 * @param options  Required.
 * @param[out] out_report  Filled up to its own struct_size; may be NULL. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  On this rank or another: no live communicator or optimizer.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  On this rank or another: from and to are the same, a
 *                 pointer is NULL, or an option is out of range. Or they differ in the rule, its
 *                 flags, masters or groups of parameters, or in whether they have a loss scale or
 *                 TRIREME_UNUSED_SKIP.
 * @retval TRIREME_ERROR_INVALID_STATE  On this rank or another: a step of one of them is under way,
 *                 or a unit of `to` is or was gathered. Or called from inside a callback.
 * @retval TRIREME_ERROR_MISMATCH  On all ranks: they gave other cuts or buffer_bytes, or their old
 *                 optimizers have other counters, rules or groups. Or an element of a parameter, or
 *                 of its state, lies on no rank of one layout, or on two. Or a parameter has
 *                 another shape, type or group. The message names it, and ranks of `communicator`.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out on a rank.
 * @retval TRIREME_ERROR_SYSTEM  A rank could not make a mapping or socket. Or its file of state or
 *                 parameters cannot be read or written.
 * @retval TRIREME_ERROR_CORRUPT  A file differs from what was written to it. Or what a peer tells
 *                 cannot be.
 * @retval TRIREME_ERROR_TIMEOUT  A rank has not come or has not answered; names it.
 * @retval TRIREME_ERROR_PEER_LOST  A rank died or left; names it.
 * @retval TRIREME_ERROR_ABORTED  The communicator was aborted.
 * @return The status with which a model has failed, if it has.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_parallel_rebalance(
    trireme_optimizer *from, trireme_optimizer *to, const trireme_rebalance_options *options,
    trireme_rebalance_report *out_report);

TRIREME_END_C

#endif
