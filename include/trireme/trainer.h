/**
 * @file trainer.h
 * @brief A whole training step in one call: the caller brings the layers' forward and backward.
 *
 * A trainer runs a list of layers, in which each layer's output is the next one's input. It gathers
 * each layer's parameters around its callbacks, with the next ones on their way, hands in gradients
 * as backward produces them, so that their exchange overlaps with the rest, keeps or computes again
 * what backward needs, and ends the step. The same callbacks train with every strategy.
 *
 * A step has total = leaves micro-batches of a reproducible model, else micro_batches of each rank.
 * They are numbered over all ranks: rank r computes number i * world size + r as its i-th. The loss
 * of a step is the mean of all of them in the order of these numbers: of a reproducible model the
 * same bits for every number of ranks, as its parameters are.
 *
 * What is kept between forward and backward of a micro-batch ("activations") lies in memory of the
 * library: each layer's output and what its forward saves. Without checkpoints all of it is kept.
 * With checkpoints layers are cut into stretches; of a stretch only the last output is kept, and
 * what is inside it is computed again, by the same callbacks, when backward comes to it; the last
 * stretch still has everything. So a layer's forward runs at most twice in a micro-batch.
 * checkpoint_every cuts after every so many layers. activation_budget_bytes keeps as many of the
 * last layers in one stretch as fit, so that as few as possible are computed again, and cuts those
 * before into stretches that need no more memory than that one, or than the largest layer alone.
 *
 * With offload_path all that is kept goes to a file and comes back, and memory has a window of it. It
 * is cut into items: of each layer output and saved, or with checkpoint_every each kept output. The
 * window has slots, which items take in turn, one after the other; each has room for the largest of
 * its items, in whole pages of 4,096 bytes. There are as many slots as fit offload_buffer_bytes, and
 * what activation_budget_bytes leaves beside the gradients of outputs: at least two, or one for one
 * item, and at most 1,024, or one for each item where all of them fit. The last items stay in their
 * slots; those before are written while later layers run forward, and read, in reverse order, while
 * later ones run backward. The bits are the same, and callbacks see what they see without. With
 * activation_budget_bytes nothing is computed again. evaluate writes
 * nothing.
 *
 * The file's trouble: what cannot be written stays in memory from then on. Without memory for it, or
 * where something cannot be read, twice, or is not what was written, the step fails on all ranks as
 * if a callback had failed, with TRIREME_ERROR_SYSTEM or TRIREME_ERROR_CORRUPT: nothing has changed,
 * and the next step may come. A disk that does not answer by the deadline breaks the model.
 *
 * A callback that fails on one rank does not break the model: the rank goes through the rest of the
 * step without computing, so that the others wait for nobody, and before anything is updated all
 * ranks hear of it. They return TRIREME_ERROR_CALLBACK, gradients are discarded, parameters are what
 * they were, and the next step may come. (Where the optimizer has norm_ranks, other models have come
 * further: then the model fails. So it does with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD, if backward fails
 * after all ranks have handed in the first bucket of their last micro-batch.)
 *
 * Backward writes its gradients whole. The library fills them with a mark before, a NaN of its own, and
 * looks for it afterwards. A gradient that was not written, was written in part or was added to fails
 * the step as a callback does: the message names the layer, its parameters and the rank. So does an
 * input_gradient that was not written, or a part of it, if that comes to a gradient of a layer before. Memory that a callback brings itself is not
 * looked at, and any other NaN or inf is a gradient as good as any. TRIREME_TRAINER_FLAG_ZERO_GRADIENTS fills
 * with 0 in place of the mark, and looks for nothing.
 *
 * A step allocates nothing but what the model's own calls do; see "working memory" in model.h.
 * With offload_path it also does for an item that cannot be written: its own memory from then on.
 *
 * Ownership: a trainer keeps its optimizer and model alive; destroy in any order. Between steps the
 * model and the optimizer are the caller's as without a trainer.
 * Thread safety: one call at a time per model, except where a function says otherwise.
 */
#ifndef TRIREME_TRAINER_H
#define TRIREME_TRAINER_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/optimizer.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** Why a layer is called. */
enum {
    /** Before backward. */
    TRIREME_PHASE_FORWARD = 1,
    /** Forward again, of what was not kept: the same output and saved are wanted. */
    TRIREME_PHASE_RECOMPUTE = 2,
    /** Gradients. */
    TRIREME_PHASE_BACKWARD = 3,
    /** Forward of trireme_trainer_evaluate(): no backward follows. */
    TRIREME_PHASE_EVALUATE = 4
};

/**
 * One call of a layer. All memory is the library's, good until the callback returns, aligned to 64
 * bytes (parameters and gradients to their elements), and NULL where it has 0 bytes. "Out": what the
 * callback writes, undefined before; gradients are NaN before, or 0 with TRIREME_TRAINER_FLAG_ZERO_GRADIENTS.
 */
typedef struct trireme_layer_call {
    /** sizeof this struct as the library knows it. */
    uint32_t struct_size;
    /** TRIREME_PHASE_*. */
    int32_t phase;
    /** Number of the layer, from 0. */
    uint64_t layer;
    /** trireme_optimizer_get_step_count() before the step. */
    uint64_t step;
    /** Which one of this rank, from 0. */
    uint32_t micro_batch;
    /** Which one over all ranks; of a reproducible model the leaf. */
    uint32_t leaf;
    /**
     * Of this layer in this micro-batch and step: the same in FORWARD, RECOMPUTE and BACKWARD.
     * Depends on options.seed, step, leaf and layer alone.
     */
    uint64_t random_seed;
    /** The output of the layer before; NULL for the first, which reads the batch. */
    const void *input;
    /** Its size. */
    uint64_t input_bytes;
    /** Out in FORWARD, RECOMPUTE and EVALUATE; in BACKWARD what forward wrote. */
    void *output;
    /** As in trireme_layer. */
    uint64_t output_bytes;
    /** As `output`; BACKWARD may also change it. */
    void *saved;
    /** As in trireme_layer. */
    uint64_t saved_bytes;
    /** Elements of each of the layer's parameters, whole, in the order of registration. */
    const void *const *parameters;
    /** Elements of each. */
    const uint64_t *parameter_counts;
    /** Numbers at `parameters`, `parameter_counts` and `gradients`. */
    uint64_t parameter_count;
    /**
     * BACKWARD: where the gradient of each parameter is to be overwritten whole, in its dtype, or
     * f32 where that is f16 or bf16; NULL of a frozen one. A callback may set a place to other
     * memory, which is read when it returns and must not be the model's; or to NULL: there is no
     * gradient, and the model's TRIREME_UNUSED_* decides (with TRIREME_UNUSED_ERROR the callback
     * has failed). NULL in the other phases.
     */
    void **gradients;
    /**
     * BACKWARD: of the output, by the layer behind; NULL for the last, which begins with the loss.
     */
    const void *output_gradient;
    /** Out in BACKWARD: the gradient of `input`, input_bytes; NULL for the first layer. */
    void *input_gradient;
    /**
     * Out in FORWARD and EVALUATE of the last layer: the loss of this micro-batch, NaN if it is not
     * written. NULL elsewhere.
     */
    double *loss;
    /**
     * BACKWARD: what the last layer multiplies the gradient of the loss by:
     * trireme_optimizer_get_loss_scale(), divided by micro_batches where gradients are averaged
     * over ranks but added up over micro-batches.
     */
    double loss_scale;
    /** As handed to trireme_trainer_step() or trireme_trainer_evaluate(). */
    void *batch;
} trireme_layer_call; /* since 1.0 */

/**
 * Forward or backward of a layer, on the thread of the step. It returns 0, or any other number to fail
 * the step on all ranks. It may destroy the trainer, the optimizer and the model, which live on until
 * the step is over; any other call on them, but trireme_trainer_request_stop(), answers
 * TRIREME_ERROR_INVALID_STATE. What it throws (C++) counts as a failure and goes no further.
 */
typedef int32_t(TRIREME_CALL *trireme_layer_callback)(const trireme_layer_call *call,
                                                      void *user_data);

/** One layer. Start from TRIREME_LAYER_INIT. */
typedef struct trireme_layer {
    /** sizeof this struct as the caller knows it; the same in all of a list. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /** For messages; UTF-8, at most 255 bytes; required; copied. */
    const char *name;
    /** Number of its first parameter. */
    uint64_t first_parameter;
    /**
     * How many, by their numbers one after the other; 0: none. Every parameter of the model belongs
     * to one layer; one that several layers use has a name in each (tied_to).
     */
    uint64_t parameter_count;
    /** Required. */
    trireme_layer_callback forward;
    /** Required. */
    trireme_layer_callback backward;
    /** Handed to both. */
    void *user_data;
    /** Size of its output for one micro-batch; may be 0 of the last one. */
    uint64_t output_bytes;
    /** What forward keeps for backward besides, for one micro-batch. */
    uint64_t saved_bytes;
} trireme_layer; /* since 1.0 */

/** A layer that does nothing yet. */
#define TRIREME_LAYER_INIT { sizeof(trireme_layer), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** What a step has done. Set struct_size before a call that fills it. */
typedef struct trireme_trainer_metrics {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /**
     * 1: a rank has asked to stop, in or after the step before, or by now. The same on all ranks.
     */
    int32_t stop;
    /** 1: with the optimizer's loss_scale, a gradient was inf or NaN and nothing was updated. */
    int32_t skipped;
    /** 0. */
    uint32_t reserved;
    /** trireme_optimizer_get_step_count() after the step. */
    uint64_t step;
    /** Over all ranks. */
    uint64_t micro_batches;
    /** As sent_step_bytes of trireme_model_memory. */
    uint64_t sent_bytes;
    /** Mean over all micro-batches; the same on all ranks. */
    double loss;
    /**
     * As trireme_optimizer_get_gradient_norm(); -1 without max_norm, and of a step that was
     * skipped.
     */
    double gradient_norm;
    /** That the step had. */
    double learning_rate;
    /** Of the optimizer, that the step had. */
    double loss_scale;
    /** That the step took on this rank. */
    double seconds;
    /** Of these, those in which it waited for communication. */
    double exposed_seconds;
} trireme_trainer_metrics; /* since 1.0 */

/** Metrics ready for trireme_trainer_step(). */
#define TRIREME_TRAINER_METRICS_INIT { sizeof(trireme_trainer_metrics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Called on the thread of trireme_trainer_step() when a step is done, on ranks that have one. It
 * returns 0 to go on; any other number, or what it throws, asks all ranks to stop, as
 * trireme_trainer_request_stop() does. It may call the model and the optimizer as between steps, but
 * trireme_trainer_step() and trireme_trainer_evaluate() answer TRIREME_ERROR_INVALID_STATE.
 */
typedef int32_t(TRIREME_CALL *trireme_trainer_callback)(const trireme_trainer_metrics *metrics,
                                                        void *user_data);

/** Bits of trireme_trainer_options.flags. */
enum {
    /** `gradients` and `input_gradient` are 0 before backward, which may add to them. Nothing is looked at for what was not written. */
    TRIREME_TRAINER_FLAG_ZERO_GRADIENTS = 1
};

/** Start from TRIREME_TRAINER_OPTIONS_INIT. In every field 0 or NULL means the default. */
typedef struct trireme_trainer_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** TRIREME_TRAINER_FLAG_*. */
    uint32_t flags;
    /**
     * Of each rank in a step. Default: 1. Of a reproducible model it must be 0: its leaves are
     * shared out. At most 1 with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD.
     */
    uint32_t micro_batches;
    /** Must be 0. */
    uint32_t reserved;
    /**
     * Keep the output of every so many-th layer and compute the rest again. Default: keep
     * everything.
     */
    uint64_t checkpoint_every;
    /**
     * Most memory that activations and the gradients of outputs may take; checkpoints are set so
     * that as few layers as possible are computed again, and none with offload_path. Not with
     * checkpoint_every. Default: no limit.
     */
    uint64_t activation_budget_bytes;
    /** From which random_seed comes. */
    uint64_t seed;
    /** May differ between ranks. NULL: none. */
    trireme_trainer_callback after_step;
    /** Handed to after_step. */
    void *user_data;
    /**
     * A directory: what is kept between forward and backward lies in a file in it and streams
     * through a window of memory: see the top of this file. Each rank makes the file for itself,
     * without a name, so that nothing is left of it when the process ends. Read as a path of the
     * rank's own host; copied. NULL: all of it stays in memory.
     */
    const char *offload_path;
    /**
     * Most memory for that window. Default: what activation_budget_bytes leaves; without that as
     * much as four layers need, or four stretches.
     */
    uint64_t offload_buffer_bytes;
} trireme_trainer_options; /* since 1.0 */

/** Options of which all have their defaults. */
#define TRIREME_TRAINER_OPTIONS_INIT { sizeof(trireme_trainer_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** What a trainer looks like on this rank. Set struct_size before the call. */
typedef struct trireme_trainer_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Most that a rank has in a step. */
    uint32_t micro_batches;
    /** Layers. */
    uint64_t layers;
    /** Into which they are cut; 1: everything is kept. */
    uint64_t stretches;
    /** Layers whose forward runs twice in a micro-batch. */
    uint64_t recomputed;
    /** Outputs that are kept of all stretches but the last. */
    uint64_t planned_checkpoint_bytes;
    /** Outputs and saved of the largest stretch. */
    uint64_t planned_stretch_bytes;
    /**
     * Gradients of outputs: of two neighbouring layers, the largest of those with an even and with
     * an odd number.
     */
    uint64_t planned_gradient_bytes;
    /**
     * Where backward writes gradients that have no view in the model: the most that one layer has.
     */
    uint64_t planned_parameter_gradient_bytes;
    /** Losses and answers of all ranks. */
    uint64_t planned_exchange_bytes;
    /** The sum of these, counted where memory is allocated. */
    uint64_t allocated_bytes;
    /** What activations and gradients of outputs take if everything is kept. */
    uint64_t largest_bytes;
    /** The least activation_budget_bytes that works. */
    uint64_t least_bytes;
    /**
     * With offload_path: the window, in which what is kept lies in place of checkpoints and
     * stretch, or of checkpoints alone; and what could not be written and stays in memory since.
     */
    uint64_t planned_window_bytes;
} trireme_trainer_info; /* since 1.0 */

/** Info ready for trireme_trainer_get_info(). */
#define TRIREME_TRAINER_INFO_INIT { sizeof(trireme_trainer_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Makes a trainer of layers over a model and its optimizer.
 *
 * Collective: blocks until all ranks have called it with the same layers (names, parameters, sizes)
 * and options, or the deadline passes. Keeps the callbacks and their user_data until the trainer is
 * destroyed.
 *
 * @param optimizer  The optimizer, which also says which model.
 * @param layers  `layer_count` layers in the order of forward, each layers[0].struct_size bytes
 *                  behind the one before.
 * @param layer_count  1 or more.
 * @param options  How to run them. Required.
 * @param[out] out_trainer  The new trainer; free it with trireme_trainer_destroy(). Not written on
 * failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, layer_count is 0, a field is out of
 * range, offload_path is empty, offload_buffer_bytes is set without it, a layer has no name or lacks
 * a callback, sizes overflow, or a parameter belongs to no layer or to two; the message names the
 * layer or the parameter.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_STATE  A step is under way.
 * @retval TRIREME_ERROR_MISMATCH  Ranks have different layers or options; the message names the
 * first difference. The model lives on.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out, or activation_budget_bytes or
 * offload_buffer_bytes is less than the least that works, which the message names, on all ranks. The
 * model lives on.
 * @retval TRIREME_ERROR_SYSTEM  On this rank or another no file can be made in offload_path, or it has
 * no room; the message says what is needed and what is free. The model lives on.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` or a layer sets a field newer than this library, or
 * the model is TRIREME_MODEL_FLAG_UNEVEN: ranks that have run out of data cannot follow a trainer. Or
 * micro_batches is above 1 with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD.
 * @return Any other status as listed at the top of model.h.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_trainer_create(trireme_optimizer *optimizer, const trireme_layer *layers,
                       uint64_t layer_count, const trireme_trainer_options *options,
                       trireme_trainer **out_trainer);

/**
 * Gives the handle and the memory back. In the middle of a step of this trainer, as from a callback,
 * the step goes on to its end.
 *
 * Never waits for a peer. With offload_path, here or of its optimizer, it may wait up to 10 seconds
 * for each file's transfers under way; a disk that has not answered by then is left to itself.
 *
 * @param trainer  A trainer; NULL and a stale handle are ignored.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALL trireme_trainer_destroy(trireme_trainer *trainer);

/**
 * Makes one step: forward and backward of all micro-batches, and trireme_optimizer_step().
 *
 * Collective: blocks until it is done or a deadline passes. Keeps no pointer.
 *
 * @param trainer  The trainer.
 * @param batch  Handed to the callbacks as it is; may be NULL.
 * @param[out] out_metrics  Filled up to its own struct_size; may be NULL. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_metrics has a struct_size that is too small.
 * @retval TRIREME_ERROR_INVALID_STATE  Called from inside a callback, or a step was begun without the
 * trainer and is under way, or a unit is gathered (zero3), or gradients overflow at the floor of the loss scale, as
 * trireme_optimizer_step() says.
 * @retval TRIREME_ERROR_CALLBACK  A layer's callback returned another number than 0 or threw, on
 * this rank or another: the same message on all ranks names rank, layer, phase and answer. Or backward
 * left a gradient unwritten: it names the parameters, ten of them. Nothing
 * has changed, or the message says that the model has failed (TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD). So it is if the optimizer's schedule has no rate. Or the optimizer's rule or a bucket
 * hook did, as trireme_optimizer_step() says.
 * @retval TRIREME_ERROR_SYSTEM  With offload_path: activations can be neither written nor kept in
 * memory, or not be read, twice, on this rank or another; the same message on all ranks names rank,
 * layer and phase. Nothing has changed, except as after a callback that fails (norm_ranks and
 * TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD at the top of this file). Or, with an offload_path of the optimizer
 * or of the model, state or parameters cannot be read: the message of that rank speaks of "the file
 * of the state" or "of the parameters", and the model has failed. A model that has failed answers the same in every later step.
 * @retval TRIREME_ERROR_CORRUPT  With offload_path: what was read of activations is not what was
 * written, twice, likewise; or of the state or the parameters, and the model has failed.
 * @return Any other status as listed at the top of model.h; the model has failed.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_trainer_step(trireme_trainer *trainer, void *batch, trireme_trainer_metrics *out_metrics);

/**
 * Runs forward alone, over as many micro-batches as a step has, and tells their mean loss. The last
 * layer's callback may copy its output for the caller.
 *
 * Collective: blocks until it is done or a deadline passes. Keeps no pointer.
 *
 * @param trainer  The trainer.
 * @param batch  Handed to the callbacks as it is; may be NULL.
 * @param[out] out_loss  As of a step. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_loss is NULL.
 * @retval TRIREME_ERROR_INVALID_STATE  As trireme_trainer_step().
 * @retval TRIREME_ERROR_CALLBACK  As trireme_trainer_step().
 * @return Any other status as listed at the top of model.h; the model has failed.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_trainer_evaluate(trireme_trainer *trainer, void *batch, double *out_loss);

/**
 * Asks all ranks to stop. Ranks tell each other in the middle of a step, so `stop` of the metrics
 * becomes 1 on all of them after the same step: the one under way or, if that has told already, the
 * next; then it stays 1. Nothing else happens: the caller ends its loop.
 *
 * Local: does not wait for the peers. May be called from inside a callback.
 *
 * @param trainer  The trainer.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live trainer of this process.
 *
 * Thread safety: any thread, any time.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_trainer_request_stop(trireme_trainer *trainer);

/**
 * Tells what a trainer looks like.
 *
 * Does not block.
 *
 * @param trainer  The trainer.
 * @param[out] out_info  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live trainer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_info is NULL or its struct_size is too small.
 * @retval TRIREME_ERROR_INVALID_STATE  Called from inside a callback.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_trainer_get_info(const trireme_trainer *trainer, trireme_trainer_info *out_info);

/**
 * Tells how the activations of a trainer with offload_path lie on this rank, and what the disk has
 * done for them. Of trireme_offload_info, file_bytes is what a micro-batch writes and reads,
 * resident_bytes what could not be written, buffer_bytes the window, block_bytes the largest item.
 *
 * Does not block.
 *
 * @param trainer  The trainer.
 * @param[out] out_info  Filled up to its own struct_size; its texts live as long as the trainer.
 * Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live trainer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_info is NULL or its struct_size is too small.
 * @retval TRIREME_ERROR_INVALID_STATE  The trainer was created without offload_path, or called from
 * inside a callback.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_trainer_get_offload_info(const trireme_trainer *trainer, trireme_offload_info *out_info);

TRIREME_END_C

#endif
