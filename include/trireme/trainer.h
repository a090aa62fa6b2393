/**
 * @file trainer.h
 * @brief A whole training step in one call: the caller brings the layers' forward and backward.
 *
 * A trainer runs a list of layers. The output of each layer is the input of the next one. Around
 * the caller's callbacks the trainer:
 *
 * - gathers each layer's parameters, while those of the next layers are on their way;
 * - hands in gradients as backward produces them, so that their exchange overlaps with the rest;
 * - keeps what backward needs, or computes it again;
 * - ends the step.
 *
 * The same callbacks train with every strategy. docs/trainer.md has an example.
 *
 * Micro-batches: a step of a reproducible model has `leaves` micro-batches in all. A step of any
 * other model has micro_batches on each rank. They are numbered over all ranks: the i-th one of
 * rank r has number i * world size + r, with i from 0. The loss of a step is the mean of all
 * micro-batches, added up in the order of these numbers. With a reproducible model it has the same
 * bits for every number of ranks, as the parameters have.
 *
 * Activations: forward of a micro-batch leaves data for its backward, in memory of the library.
 * These data are each layer's output and the `saved` bytes that its forward fills. Without
 * checkpoints the trainer keeps all of them.
 *
 * Checkpoints: the trainer cuts the layers into stretches, each a run of consecutive layers. Of a
 * stretch it keeps the last output alone, the checkpoint. When backward comes to the stretch, the
 * same callbacks compute the rest of it again. The last stretch still has everything. So a layer's
 * forward runs at most twice in a micro-batch. Two options set checkpoints:
 *
 * - checkpoint_every cuts after every so many layers.
 * - activation_budget_bytes is a limit in bytes. The last stretch gets as many layers as fit, so
 *   that as few as possible are computed again. The layers before it are cut into stretches, too.
 *   None of these needs more memory than the last stretch or the largest layer alone, whichever is
 *   more.
 *
 * Offload: with the option offload, all activations go to a file and come back. A window of memory
 * holds those in use. Callbacks see the same memory as without a file, and the bits are the same.
 *
 * - The activations are cut into items. An item is the output and `saved` of one layer. With
 *   checkpoint_every it is one checkpoint.
 * - The window has slots, which items take in turn. A slot has room for the largest of its items,
 *   in whole pages of 4,096 bytes.
 * - The window has as many slots as fit into both limits. The limits are offload.buffer_bytes and
 *   the part of activation_budget_bytes that the gradients of outputs leave.
 * - It has at least two slots, or one for a single item. It has at most 1,024, or one for each item
 *   if all items fit. With neither limit set it has four. If the least window does not fit,
 *   trireme_trainer_create() names the least bytes that work.
 * - The last items stay in their slots. Items before them are written while later layers run
 *   forward. They are read in reverse order while later layers run backward.
 * - With activation_budget_bytes nothing is computed again.
 * - trireme_trainer_evaluate() writes nothing.
 *
 * Offload with a pipeline differs in these points:
 *
 * - An item is what one layer keeps of one micro-batch until its backward ends: the output and
 *   `saved`, or with checkpoint_every the checkpoint. It is what the layer computes again, where R
 *   or I computes forward of the whole stage again.
 * - The input of a stage and the output that it sends stay in memory: planned_stretch_bytes.
 * - Items have no fixed slots. The schedule tells all calls of layers beforehand, so the trainer
 *   plans when and where each item is in memory. A write may last for so many calls, and a read
 *   begins so many calls before its item is used. Items that are used again sooner stay.
 * - That number of calls is as large as both limits let the window be. With neither limit set it is
 *   1.
 * - The file has room for all items that are in it at once.
 * - Ranks of one model have equal options. Other stages may have another window, or no file.
 *
 * Trouble with that file:
 *
 * - An item that cannot be written stays in memory from then on. Without memory for it the step
 *   fails with TRIREME_ERROR_SYSTEM.
 * - An item that cannot be read, or differs from the one written, is read once more. If the second
 *   attempt cannot read it, the step fails with TRIREME_ERROR_SYSTEM. If it still differs, the step
 *   fails with TRIREME_ERROR_CORRUPT.
 * - Such a step fails on all ranks, as if a callback had failed. Nothing has changed, and the next
 *   step may come.
 * - A disk that does not answer by the deadline makes the model fail.
 *
 * Callbacks that fail: a callback that fails on one rank does not break the model. The rank goes
 * through the rest of the step without computing, so that no peer waits for it. Before the update
 * all ranks learn of the failure. They return TRIREME_ERROR_CALLBACK and discard their gradients.
 * Parameters stay as they were, and the next step may come. In two cases the model fails instead:
 *
 * - The optimizer has norm_ranks, and some of them are ranks of neither the model nor the
 *   pipeline: other models have then gone further with the step.
 * - The model has TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD, and backward fails late: all ranks have
 *   handed in the first bucket of their last micro-batch.
 *
 * Pipeline: with the option pipeline, this rank has the layers of its own stages alone.
 *
 * - The caller gives these layers in the order of forward: those of its first stage, then those of
 *   its next one. The model has their parameters alone.
 * - The ranks of the model are those with the same stages ("data" of a mesh).
 * - A rank whose stages have no layers has a model without parameters. It passes on outputs and
 *   gradients, and takes part in the step.
 * - Each rank makes the actions of its list in the schedule, in order. An output goes to the next
 *   stage, a gradient to the stage before. docs/pipeline.md tells the schedules.
 * - The micro-batches of the schedule are those of each rank in a step.
 * - Gradients are added up in the order of micro-batches, whatever the schedule.
 * - All ranks learn the mean loss, which the last stage computes.
 * - An optimizer with a max_norm or a loss_scale needs norm_ranks of all ranks of "data" and
 *   "pipeline", as a mesh sets them. Else each stage would clip or skip alone.
 * - A callback that fails breaks no model: all ranks of "data" and "pipeline" discard the step. But
 *   the model fails if norm_ranks or the mesh have ranks beyond these ("tensor", "context").
 * - A rank that fails otherwise, or dies, makes the models of all these ranks fail.
 * - The trainer sums up gradients of micro-batches in memory of its own, beside that of the model.
 *   trireme_trainer_info tells its bytes, and memory_limit_bytes of the model counts them.
 * - Ranks that share memory read outputs and gradients where the rank before, or after, has them.
 *   A layer may read its `input` and `output_gradient` there, and must not write to them.
 * - checkpoint_every cuts the layers of each stage. From forward to backward, a micro-batch keeps
 *   the checkpoints of a stage and the output that is sent, and no stretch. Of a backward in halves
 *   (I and W) it keeps the input of the stage in their place. Backward computes the stretches
 *   again, from the last one. A backward right after its forward still has the last one, or in
 *   halves the whole stage.
 * - activation_budget_bytes limits the planned_stretch_bytes and planned_gradient_bytes of each
 *   rank. The fewest layers that fit are computed again: those of the rank's first stage first.
 * - Where the schedule has R, all layers of the stage run forward again then, also without these
 *   options. Their data stay until backward ends.
 * - Before a backward in halves (I and W), all those layers are computed again at once, in I. Their
 *   data stay until W.
 * - Ranks of one model have equal options of checkpoints. Other stages may have other ones.
 * - A SEND_B may come later than the I or B that computes its gradient. Then each micro-batch has
 *   memory of its own for it, and otherwise as few as the schedule needs.
 *
 * Sizes that vary: output_bytes is the most that a layer puts out. A callback that puts out less
 * for a micro-batch says so by output_used. The next layer then finds input_used and input_shape,
 * in forward and in backward, also on another rank. docs/trainer.md#sizes-that-vary has an example.
 *
 * Skip connections: a layer may read outputs of earlier layers beside its input. `reads` of
 * trireme_layer names these layers. A call finds their outputs in read_inputs, and backward writes
 * a gradient for each. The library adds up the gradients of an output: that of the last layer which
 * reads it first, and that of the next layer at the end. It rounds a 16-bit sum once. The order
 * does not depend on the ranks. Along a pipeline an output goes straight to the ranks that read it,
 * past the stages between. The library keeps a copy of such an output until the backward of its
 * layer. docs/trainer.md#skip-connections has an example.
 *
 * Unwritten gradients: backward writes every element of its gradients. Before backward the library
 * fills them with a mark, a NaN of its own. After backward it looks for the mark. The step fails,
 * as with a failed callback, in these cases:
 *
 * - A gradient was not written, or only a part of it was.
 * - Backward added to a gradient.
 * - An input_gradient, or a part of it, was not written and comes to a gradient of a layer before.
 * - A gradient of read_gradients, or a part of it, was not written.
 *
 * The message names the layer, its parameters and the rank. The library does not look at memory
 * that a callback brings itself. It takes any other NaN or inf as a gradient like any other. With
 * TRIREME_TRAINER_FLAG_ZERO_GRADIENTS it fills with 0 and looks for nothing.
 *
 * On a device (model_device.h): all memory of a call but `loss` is memory of the model's device. A
 * callback queues its work in the `stream` of the call, and returns. The memory stays good for that
 * work. A step and an evaluation end when the work is done. docs/gpus.md#trainers tells where the
 * host waits, and what is searched for unwritten elements.
 *
 * Memory: a step allocates nothing but what the model's own calls do; see "working memory" in
 * model.h. With offload it also allocates memory for an item that cannot be written, once. With
 * `reads` a pass also allocates short lists of addresses.
 *
 * Ownership: a trainer keeps its optimizer and model alive; the caller destroys the three in any
 * order. Between steps the caller uses model and optimizer as without a trainer.
 * Thread safety: one call at a time per model, except where a function says otherwise.
 */
#ifndef TRIREME_TRAINER_H
#define TRIREME_TRAINER_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/optimizer.h>
#include <trireme/pipeline.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** Why a layer is called. */
enum {
    /** Forward; backward follows. */
    TRIREME_PHASE_FORWARD = 1,
    /** Forward again, because its data were not kept. It must write the same output and saved. */
    TRIREME_PHASE_RECOMPUTE = 2,
    /** Backward: the callback computes gradients. */
    TRIREME_PHASE_BACKWARD = 3,
    /** Forward of trireme_trainer_evaluate(): no backward follows. */
    TRIREME_PHASE_EVALUATE = 4,
    /** Backward of a layer with backward_weight: the gradient of the input alone. */
    TRIREME_PHASE_BACKWARD_INPUT = 5,
    /** The callback backward_weight: the gradients of the parameters alone. */
    TRIREME_PHASE_BACKWARD_WEIGHT = 6
};

/** Lengths of arrays in trireme_layer_call. */
enum {
    /** Numbers at input_shape, and at output_shape. */
    TRIREME_LAYER_DIMENSIONS = 8
};

/**
 * One call of a layer. More than 16 fields: the library fills them all, no caller sets any, and a
 * callback reads each of them without a second pointer.
 *
 * All memory here belongs to the library and lives until the callback returns. On a device it lives
 * until the work is done that the callback has queued. It is aligned to 64 bytes; parameters and
 * gradients are aligned to their elements. A pointer to 0 bytes is NULL. "Out" marks memory that
 * the callback writes. Its content before is undefined. Gradients and input_gradient are NaN
 * before, or 0 with TRIREME_TRAINER_FLAG_ZERO_GRADIENTS.
 */
typedef struct trireme_layer_call {
    /** sizeof this struct as the library knows it. */
    uint32_t struct_size;
    /** TRIREME_PHASE_*. */
    int32_t phase;
    /** Number of the layer in this rank's list, from 0. */
    uint64_t layer;
    /** trireme_optimizer_get_step_count() before the step. */
    uint64_t step;
    /** Number of the micro-batch on this rank, from 0. */
    uint32_t micro_batch;
    /** Number of the micro-batch over all ranks, from 0. In a reproducible model: the leaf. */
    uint32_t leaf;
    /**
     * Seed for this layer in this micro-batch and step. The same in all phases. It depends on
     * options.seed, step, leaf and number alone.
     */
    uint64_t random_seed;
    /** Output of the layer before. NULL for the first layer, which reads the batch. */
    const void *input;
    /** Bytes at `input`. */
    uint64_t input_bytes;
    /** Out in FORWARD, RECOMPUTE and EVALUATE. In BACKWARD*: the bytes that forward wrote. */
    void *output;
    /** Bytes at `output`, as in trireme_layer. */
    uint64_t output_bytes;
    /** Data that forward leaves for backward; out as `output`. BACKWARD* may change it, too. */
    void *saved;
    /** Bytes at `saved`, as in trireme_layer. */
    uint64_t saved_bytes;
    /** For each parameter of the layer: its elements, whole. In the order of registration. */
    const void *const *parameters;
    /** For each parameter of the layer: the number of its elements. */
    const uint64_t *parameter_counts;
    /** Number of entries in `parameters`, `parameter_counts` and `gradients`. */
    uint64_t parameter_count;
    /**
     * BACKWARD and BACKWARD_WEIGHT: for each parameter, where the callback writes the whole
     * gradient; see docs/trainer.md#gradients. In the parameter's dtype, or f32 for f16 and bf16. A
     * place is NULL for a frozen parameter. A callback may set a place to other memory or to NULL.
     * In the other phases the pointer itself is NULL.
     */
    void **gradients;
    /**
     * BACKWARD, BACKWARD_INPUT and BACKWARD_WEIGHT: gradient of `output`, written by the next
     * layer. NULL for the last layer.
     */
    const void *output_gradient;
    /**
     * Out in BACKWARD and BACKWARD_INPUT: the gradient of `input`, input_bytes long. NULL for the
     * first layer.
     */
    void *input_gradient;
    /**
     * Out in FORWARD, RECOMPUTE and EVALUATE of the last layer: the loss of this micro-batch. NaN
     * if the callback does not write it. NULL for other layers and in other phases. On a device it
     * is pinned memory, which both the callback and its work may write.
     */
    double *loss;
    /**
     * BACKWARD, BACKWARD_INPUT and BACKWARD_WEIGHT: the last layer multiplies the gradient of its
     * loss by this factor. It is
     * trireme_optimizer_get_loss_scale(). It is divided by micro_batches if gradients are averaged
     * over ranks but added up over micro-batches.
     */
    double loss_scale;
    /** As handed to trireme_trainer_step() or trireme_trainer_evaluate(). */
    void *batch;
    /** Number of the layer's stage, from 0. 0 without a pipeline. */
    uint32_t stage;
    /** 0. */
    uint32_t reserved;
    /** Number of the layer in the whole model, by the cuts. `layer` without a pipeline. */
    uint64_t number;
    /**
     * Bytes of `input` that the layer before has used, at most input_bytes. Those behind them are
     * undefined, also of `input_gradient`. A pipeline sends the used bytes alone.
     */
    uint64_t input_used;
    /**
     * TRIREME_LAYER_DIMENSIONS numbers that the layer before has written to its output_shape. NULL
     * for the first layer.
     */
    const uint64_t *input_shape;
    /**
     * Out in FORWARD, RECOMPUTE and EVALUATE: bytes of `output` that this micro-batch uses. It is
     * output_bytes before the call. More fail the step. RECOMPUTE must write what FORWARD wrote. In
     * BACKWARD*: what forward wrote. `output_gradient` has as many used bytes.
     */
    uint64_t *output_used;
    /**
     * Out as output_used: TRIREME_LAYER_DIMENSIONS numbers for the next layer, such as the extents
     * of `output`. The library only hands them on. All are 0 before the call.
     */
    uint64_t *output_shape;
    /** The device of the model, where all memory here but `loss` lies; else the host. */
    trireme_device device;
    /**
     * On a device: the stream in which the callback queues its work, as trireme_model_set_stream()
     * names it. Else all zero.
     */
    trireme_stream stream;
    /** For each entry of the layer's `reads`: the output of that layer. */
    const void *const *read_inputs;
    /** For each of `read_inputs`: its bytes, as output_bytes of that layer. */
    const uint64_t *read_bytes;
    /** For each of `read_inputs`: the bytes that are used, as input_used. */
    const uint64_t *read_used;
    /** For each of `read_inputs`: TRIREME_LAYER_DIMENSIONS numbers, as input_shape. */
    const uint64_t *const *read_shapes;
    /**
     * BACKWARD and BACKWARD_INPUT: for each of `read_inputs`, where the callback writes its
     * gradient, read_used bytes. In the other phases the pointer itself is NULL.
     */
    void *const *read_gradients;
    /** Number of entries in `read_inputs`, and in the four after it. */
    uint64_t read_count;
} trireme_layer_call; /* since 1.0 */

/**
 * Forward or backward of a layer, called on the thread of the step.
 *
 * It returns 0, or any other number to fail the step on all ranks. An exception that it throws
 * (C++) counts as a failure and goes no further. It may destroy the trainer, the optimizer and the
 * model; they live on until the step is over. It may call trireme_trainer_request_stop(). Any other
 * call on these objects answers TRIREME_ERROR_INVALID_STATE.
 */
typedef int32_t(TRIREME_CALLCONV *trireme_layer_callback)(const trireme_layer_call *call,
                                                          void *user_data);

/** One layer. Start from TRIREME_LAYER_INIT. */
typedef struct trireme_layer {
    /** sizeof this struct as the caller knows it; the same in all of a list. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /** Name in messages: UTF-8, 1 to 255 bytes. Copied. Required. */
    const char *name;
    /** Number of the layer's first parameter, as the model numbered it. */
    uint64_t first_parameter;
    /**
     * Number of the layer's parameters, whose numbers follow each other; may be 0. Every parameter
     * of the model belongs to exactly one layer. Layers that share a parameter each have a name for
     * it (tied_to of the model).
     */
    uint64_t parameter_count;
    /** Computes the output. Required. */
    trireme_layer_callback forward;
    /** Computes the gradients. Required. */
    trireme_layer_callback backward;
    /** Handed to forward, backward and backward_weight; may be NULL. */
    void *user_data;
    /** Bytes of the layer's output for one micro-batch; may be 0 for the last layer. */
    uint64_t output_bytes;
    /** Bytes that forward leaves for backward beside the output, for one micro-batch. */
    uint64_t saved_bytes;
    /**
     * Computes the gradients of the parameters. Then `backward` computes the gradient of the input
     * alone (TRIREME_PHASE_BACKWARD_INPUT), and this one is called later
     * (TRIREME_PHASE_BACKWARD_WEIGHT). A pipeline makes I and W of them. It finds input, output,
     * saved and output_gradient as `backward` left them. Default: NULL, `backward` computes all.
     */
    trireme_layer_callback backward_weight;
    /**
     * Bytes of the input that the layer expects. Other output_bytes of the layer before are
     * TRIREME_ERROR_INVALID_ARGUMENT, also across stages. The first layer reads the batch, and its
     * number is not compared. Default: 0, any.
     */
    uint64_t input_bytes;
    /**
     * Numbers, in the whole model, of earlier layers whose outputs this one also reads. Not of the
     * layer right before it, whose output is its input. Copied. Default: NULL, none.
     */
    const uint64_t *reads;
    /** Numbers at `reads`, at most 4,096. */
    uint64_t read_count;
    /**
     * Type of the elements of `output`, if other layers read it: f16, bf16, f32 or f64. The library
     * adds up gradients in it. Default: 0, f32.
     */
    trireme_dtype output_dtype;
    /** Must be 0. */
    uint32_t reserved;
} trireme_layer; /* since 1.0 */

/** A layer that does nothing yet. */
#define TRIREME_LAYER_INIT TRIREME_INIT(trireme_layer)

/** Results of a step. Set struct_size before a call that fills it. */
typedef struct trireme_trainer_metrics {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /**
     * 1 once the ranks have told each other that one of them asks to stop; else 0. The same on all
     * ranks; see trireme_trainer_request_stop().
     */
    int32_t stop;
    /** 1: a gradient was inf or NaN and nothing was updated, with the optimizer's loss_scale. */
    int32_t skipped;
    /** 0. */
    uint32_t reserved;
    /** trireme_optimizer_get_step_count() after the step. */
    uint64_t step;
    /** Micro-batches of the step, over all ranks. */
    uint64_t micro_batches;
    /** As sent_step_bytes of trireme_model_memory. */
    uint64_t sent_bytes;
    /** Mean loss over all micro-batches of all ranks; the same on all ranks. */
    double loss;
    /** As trireme_optimizer_get_gradient_norm(). -1 without max_norm, or of a skipped step. */
    double gradient_norm;
    /** Learning rate of the step. */
    double learning_rate;
    /** Loss scale of the optimizer in the step. */
    double loss_scale;
    /** Seconds that the step took on this rank. */
    double seconds;
    /** Seconds of the step in which the rank waited for communication, also along a pipeline. */
    double exposed_seconds;
} trireme_trainer_metrics; /* since 1.0 */

/** Metrics ready for trireme_trainer_step(). */
#define TRIREME_TRAINER_METRICS_INIT TRIREME_INIT(trireme_trainer_metrics)

/**
 * Called on the thread of trireme_trainer_step() when a step is done, on ranks that set one.
 *
 * It returns 0 to go on. Any other number, or an exception, asks all ranks to stop, as
 * trireme_trainer_request_stop() does. It may call the model and the optimizer as between steps.
 * trireme_trainer_step() and trireme_trainer_evaluate() answer TRIREME_ERROR_INVALID_STATE here.
 */
typedef int32_t(TRIREME_CALLCONV *trireme_trainer_callback)(const trireme_trainer_metrics *metrics,
                                                            void *user_data);

/** Bits of trireme_trainer_options.flags. */
enum {
    /**
     * `gradients` and `input_gradient` are 0 before backward, which may add to them. The library
     * does not look for unwritten elements.
     */
    TRIREME_TRAINER_FLAG_ZERO_GRADIENTS = 1
};

/** Bits of trireme_trainer_pipeline_options.flags. */
enum {
    /** Refuse a schedule with W if a layer with parameters to train has no backward_weight. */
    TRIREME_TRAINER_PIPELINE_FLAG_REQUIRE_SPLIT = 1
};

/**
 * The pipeline of a trainer. Start from TRIREME_TRAINER_PIPELINE_OPTIONS_INIT.
 * docs/pipeline.md#train-with-a-pipeline has an example.
 */
typedef struct trireme_trainer_pipeline_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0, or TRIREME_TRAINER_PIPELINE_FLAG_REQUIRE_SPLIT. */
    uint32_t flags;
    /**
     * The ranks of the pipeline, as many as the schedule has: those along "pipeline" of a mesh.
     * The trainer makes a group of its own from it. Required.
     */
    trireme_communicator *communicator;
    /** The actions of all ranks. The trainer keeps a copy. Required. */
    const trireme_pipeline_schedule *schedule;
    /**
     * Stage s has the layers from cuts[s] up to, but without, cuts[s+1], by their numbers in the
     * whole model. As trireme_partition() gives them. cuts[0] is 0. The first and the last stage
     * have a layer at least. Another stage without layers passes its input on. Required.
     */
    const uint64_t *cuts;
    /** Numbers at `cuts`: the stages of the schedule, and one. */
    uint64_t cut_count;
} trireme_trainer_pipeline_options; /* since 1.0 */

/** Options that lack all that is required. */
#define TRIREME_TRAINER_PIPELINE_OPTIONS_INIT TRIREME_INIT(trireme_trainer_pipeline_options)

/** How a trainer runs. Start from TRIREME_TRAINER_OPTIONS_INIT. 0 or NULL means the default. */
typedef struct trireme_trainer_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0, or a sum of TRIREME_TRAINER_FLAG_*. Default: 0. */
    uint32_t flags;
    /**
     * Micro-batches of each rank in a step, at most 65,536. At most 1 with
     * TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD. For a reproducible model it must be 0, since the
     * trainer shares out the leaves. Default: 1.
     */
    uint32_t micro_batches;
    /** Must be 0. */
    uint32_t reserved;
    /**
     * Keep a checkpoint after every so many layers, and compute the layers between again. With a
     * pipeline: of each stage. Not with activation_budget_bytes. Default: 0, keep everything.
     */
    uint64_t checkpoint_every;
    /**
     * Most bytes for activations and gradients of outputs, with offload those in memory. The
     * trainer sets checkpoints so that as few layers as possible are computed again; none with
     * offload. Not with checkpoint_every. With a pipeline: of this rank. Default: 0, no limit.
     */
    uint64_t activation_budget_bytes;
    /** Seed from which the trainer derives each random_seed. Default: 0. */
    uint64_t seed;
    /** Called after each step; may differ between ranks. Default: NULL, none. */
    trireme_trainer_callback after_step;
    /** Handed to after_step. Default: NULL. */
    void *user_data;
    /**
     * A file of activations: see "Offload" at the top of this file. Its ratio must be 0. Default of
     * its buffer_bytes: the part of activation_budget_bytes that gradients of outputs leave;
     * without that option, the bytes of four layers or checkpoints. With a pipeline: see "Offload
     * with a pipeline" there. Default: NULL, activations stay in memory.
     */
    const trireme_offload_options *offload;
    /**
     * Train with a pipeline: see "Pipeline" at the top of this file. Default: NULL, this rank has
     * all layers.
     */
    const trireme_trainer_pipeline_options *pipeline;
} trireme_trainer_options; /* since 1.0 */

/** Options with all defaults. */
#define TRIREME_TRAINER_OPTIONS_INIT TRIREME_INIT(trireme_trainer_options)

/** Layers and memory of a trainer on this rank. Set struct_size before the call. */
typedef struct trireme_trainer_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Most micro-batches that a rank has in a step. */
    uint32_t micro_batches;
    /** Number of layers. */
    uint64_t layers;
    /**
     * Stretches into which the layers are cut. 1: the trainer keeps everything. With a pipeline: of
     * all stages of this rank, if an option cuts them, and else 1.
     */
    uint64_t stretches;
    /**
     * Layers whose forward runs twice in a micro-batch. With a pipeline: in any of them. A layer
     * does not count if each backward still finds what its forward left.
     */
    uint64_t recomputed;
    /**
     * Bytes of the checkpoints: the last outputs of all stretches but the last. With a pipeline 0:
     * planned_stretch_bytes has them.
     */
    uint64_t planned_checkpoint_bytes;
    /**
     * Bytes of outputs and saved of the largest stretch. With a pipeline: of all micro-batches that
     * are on their way at once, with their inputs and gradients of outputs. Where layers are
     * computed again, these are the checkpoints, and one stretch of a micro-batch.
     */
    uint64_t planned_stretch_bytes;
    /**
     * Bytes of gradients of outputs. Two neighbouring layers have theirs at a time. So it is the
     * largest gradient of the even layers plus the largest one of the odd layers. With a pipeline:
     * of gradients that are sent to the stage before.
     */
    uint64_t planned_gradient_bytes;
    /**
     * Bytes where backward writes gradients that have no view in the model. The trainer has room
     * for the layer that needs the most. With a pipeline also the sums over micro-batches, and
     * gradients that wait for those of an earlier micro-batch.
     */
    uint64_t planned_parameter_gradient_bytes;
    /**
     * Bytes in which ranks tell each other their losses and failures, and of outputs that other
     * layers read (`reads`) and their gradients. With a pipeline whose ranks share memory also the
     * headers of its messages, 128 bytes each.
     */
    uint64_t planned_exchange_bytes;
    /** Sum of all planned bytes, counted where memory is allocated. */
    uint64_t allocated_bytes;
    /**
     * Bytes of activations and gradients of outputs if the trainer keeps everything. With a
     * pipeline: all that its schedule keeps.
     */
    uint64_t largest_bytes;
    /**
     * The least activation_budget_bytes that works. With a pipeline: on this rank. Other ranks of
     * its model may need more.
     */
    uint64_t least_bytes;
    /**
     * With offload: bytes of the window, and of items that could not be written. The window
     * stands in place of the checkpoints. If there is one stretch, it also stands in place of that.
     * With a pipeline: beside planned_stretch_bytes, which has what never goes to the file.
     */
    uint64_t planned_window_bytes;
    /** With a pipeline: stages of this rank. Else 0. */
    uint64_t stages;
    /** Layers with backward_weight. */
    uint64_t split_layers;
} trireme_trainer_info; /* since 1.0 */

/** Info ready for trireme_trainer_get_info(). */
#define TRIREME_TRAINER_INFO_INIT TRIREME_INIT(trireme_trainer_info)

/**
 * Makes a trainer of layers over a model and its optimizer.
 *
 * Collective: blocks until all ranks have called it, or the deadline passes. All ranks name the
 * same layers (names, parameters, sizes) and options. With a pipeline all its ranks hear of a fault
 * of one of them. Only this rank knows of a bad optimizer, communicator or struct_size. The
 * trainer keeps the callbacks and their user_data until it is destroyed.
 *
 * @param optimizer  The optimizer, whose model the trainer trains.
 * @param layers  `layer_count` layers in the order of forward. Each one lies layers[0].struct_size
 *                  bytes behind the one before.
 * @param layer_count  1 or more. With a pipeline it is 0 if no stage of this rank has layers.
 * @param options  How to run them; NULL for the defaults.
 * @param[out] out_trainer  The new trainer; free it with trireme_trainer_destroy(). Not written on
 * failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer other than `options` is NULL, or a field is
 * out of range. Or layer_count is 0 without a pipeline. Or offload has no path, or a ratio. Or both
 * checkpoint_every and activation_budget_bytes are set. Or a layer lacks a name or a callback, or
 * sizes overflow. Or a parameter belongs to no layer or to two. The message names the layer or the
 * parameter. Or a layer reads itself, the one right before it, a later one, one twice, or one that
 * does not exist. Or the output_bytes of a layer that is read are no whole number of elements. Or
 * the schedule of `pipeline` breaks a rule, or has another number of ranks, stages or
 * micro-batches. Or cuts are wrong, or a layer's input_bytes are not the output_bytes before it. Or
 * the optimizer has a max_norm or a loss_scale, but no norm_ranks.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process. Or no live communicator
 * or schedule of `pipeline`.
 * @retval TRIREME_ERROR_INVALID_STATE  A step is under way.
 * @retval TRIREME_ERROR_MISMATCH  Ranks have different layers or options, or different schedules,
 * cuts or norm_ranks along a pipeline; the message names the first difference. The model lives on.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out. Or, on all ranks, that of a device
 * or pinned memory has. Or, on all ranks, activation_budget_bytes or offload.buffer_bytes is too
 * small; the message names the least that works, with a pipeline that of the ranks that need more.
 * Or, with a pipeline, the sums over micro-batches and the exchange with other ranks do not fit in
 * memory_limit_bytes of the model. The model lives on.
 * @retval TRIREME_ERROR_SYSTEM  On this rank or another no file can be made in offload.path, or
 * it has no room. The message says how much is needed and how much is free. The model lives on.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` or a layer sets a field newer than this library. Or
 * the model has TRIREME_MODEL_FLAG_UNEVEN: ranks that have run out of data cannot follow a trainer.
 * Or micro_batches is above 1 with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD. Or `pipeline` comes with
 * that flag. Or the model is on a device, with `pipeline`, offload or `reads`. Or the pipeline's
 * schedule has GATHER, RELEASE or REDUCE. Or a parameter is TRIREME_PLACEMENT_SHARED along the
 * pipeline.
 * @return Any other status as listed at the top of model.h.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_trainer_create(
    trireme_optimizer *optimizer, const trireme_layer *layers, uint64_t layer_count,
    const trireme_trainer_options *options, trireme_trainer **out_trainer);

/**
 * Gives the handle and the memory back.
 *
 * Called in the middle of a step of this trainer, as from a callback, it lets the step go on to its
 * end. Never waits for a peer. With offload, of the trainer or of its optimizer, it may wait
 * up to 10 s for each file's transfers under way. Then it returns, also if the disk has not
 * answered.
 *
 * @param trainer  A trainer; NULL and a stale handle are ignored.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_trainer_destroy(trireme_trainer *trainer);

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
 * @retval TRIREME_ERROR_INVALID_STATE  Called from inside a callback. Or a step was begun without
 * the trainer and is under way. Or a unit is gathered (zero3, hybrid_shard). Or gradients overflow
 * at the floor of the loss scale, as trireme_optimizer_step() says.
 * @retval TRIREME_ERROR_CALLBACK  A layer's callback returned another number than 0 or threw, on
 * this rank or another. The same message on all ranks names rank, layer, phase and answer. Or
 * backward left a gradient unwritten; the message names up to ten parameters. Or forward set an
 * output_used above output_bytes, or a second forward another one than the first. Or the
 * optimizer's schedule has no rate. In these cases nothing has changed, or the message says that
 * the model has failed (TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD). Or the optimizer's rule or a bucket
 * hook failed, as trireme_optimizer_step() says.
 * @retval TRIREME_ERROR_SYSTEM  With offload, on this rank or another: activations can be
 * neither written nor kept in memory, or two attempts to read them fail. The same message on all
 * ranks names rank, layer and phase. Nothing has changed, with the two exceptions of "Callbacks
 * that fail" at the top of this file. Or, with an offload of the optimizer or of the model:
 * state or parameters cannot be read. The message of that rank speaks of "the file of the state" or
 * "of the parameters". The model has then failed, and answers the same in every later step.
 * @retval TRIREME_ERROR_CORRUPT  With offload, likewise: activations that were read differ
 * from those written, in two attempts. Or state or parameters differ so, and the model has failed.
 * @return Any other status as listed at the top of model.h; the model has failed.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_trainer_step(trireme_trainer *trainer, void *batch, trireme_trainer_metrics *out_metrics);

/**
 * Runs forward alone, over as many micro-batches as a step has, and tells their mean loss.
 *
 * The last layer's callback may copy its output for the caller.
 * Collective: blocks until it is done or a deadline passes. Keeps no pointer.
 *
 * @param trainer  The trainer.
 * @param batch  Handed to the callbacks as it is; may be NULL.
 * @param[out] out_loss  Mean loss over all micro-batches of all ranks. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_loss is NULL.
 * @retval TRIREME_ERROR_INVALID_STATE  As trireme_trainer_step().
 * @retval TRIREME_ERROR_CALLBACK  As trireme_trainer_step().
 * @return Any other status as listed at the top of model.h; the model has failed.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_trainer_evaluate(trireme_trainer *trainer,
                                                                          void *batch,
                                                                          double *out_loss);

/**
 * Asks all ranks to stop.
 *
 * Ranks tell each other in the middle of a step. So `stop` of the metrics becomes 1 on all ranks
 * after the same step. That is the step under way, or the next one if the ranks have told each
 * other already. From then on `stop` stays 1. Nothing else happens: the caller ends its loop.
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_trainer_request_stop(trireme_trainer *trainer);

/**
 * Tells the layers and memory of a trainer.
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_trainer_get_info(const trireme_trainer *trainer, trireme_trainer_info *out_info);

/**
 * Tells where the activations of a trainer with offload lie on this rank.
 *
 * Also tells the disk's work for them. Fields of trireme_offload_info mean here:
 *
 * - file_bytes: bytes that a micro-batch writes and reads. With a pipeline: bytes of the file.
 * - resident_bytes: bytes that could not be written and stay in memory.
 * - buffer_bytes: bytes of the window.
 * - block_bytes: bytes of the largest item.
 *
 * Does not block.
 *
 * @param trainer  The trainer.
 * @param[out] out_info  Filled up to its own struct_size. Its texts live as long as the trainer.
 * Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live trainer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_info is NULL or its struct_size is too small.
 * @retval TRIREME_ERROR_INVALID_STATE  The trainer was created without offload. Or the call
 * came from inside a callback.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_trainer_get_offload_info(const trireme_trainer *trainer, trireme_offload_info *out_info);

TRIREME_END_C

#endif
