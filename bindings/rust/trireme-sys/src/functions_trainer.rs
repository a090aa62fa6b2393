//! What trainer.h declares.

use std::os::raw::{c_char, c_void};

use crate::{trireme_offload_info, trireme_optimizer, trireme_status, trireme_trainer};

/// Forward or backward of a layer; see `trainer.h`.
pub type trireme_layer_callback =
    Option<unsafe extern "C" fn(call: *const trireme_layer_call, user_data: *mut c_void) -> i32>;
/// Called when a step is done; see `trainer.h`.
pub type trireme_trainer_callback = Option<
    unsafe extern "C" fn(metrics: *const trireme_trainer_metrics, user_data: *mut c_void) -> i32,
>;

structs! {
    /// One call of a layer.
    trireme_layer_call {
        /// sizeof this struct as the library knows it.
        struct_size: u32,
        /// TRIREME_PHASE_*.
        phase: i32,
        /// Number of the layer, from 0.
        layer: u64,
        /// trireme_optimizer_step_count() before the step.
        step: u64,
        /// Which one of this rank, from 0.
        micro_batch: u32,
        /// Which one over all ranks; of a reproducible model the leaf.
        leaf: u32,
        /// Of this layer in this micro-batch and step: the same in FORWARD, RECOMPUTE and BACKWARD.
        random_seed: u64,
        /// The output of the layer before; NULL for the first, which reads the batch.
        input: *const c_void,
        /// Its size.
        input_bytes: u64,
        /// Out in FORWARD, RECOMPUTE and EVALUATE; in BACKWARD what forward wrote.
        output: *mut c_void,
        /// As in trireme_layer.
        output_bytes: u64,
        /// As `output`; BACKWARD may also change it.
        saved: *mut c_void,
        /// As in trireme_layer.
        saved_bytes: u64,
        /// Elements of each of the layer's parameters, whole, in the order of registration.
        parameters: *const *const c_void,
        /// Elements of each.
        parameter_counts: *const u64,
        /// Numbers at `parameters`, `parameter_counts` and `gradients`.
        parameter_count: u64,
        /// BACKWARD: where the gradient of each parameter is to be overwritten whole, in its dtype,
        /// or f32 where that is f16 or bf16; NULL of a frozen one.
        gradients: *mut *mut c_void,
        /// BACKWARD: of the output, by the layer behind; NULL for the last, which begins with the
        /// loss.
        output_gradient: *const c_void,
        /// Out in BACKWARD: the gradient of `input`, input_bytes; NULL for the first layer.
        input_gradient: *mut c_void,
        /// Out in FORWARD and EVALUATE of the last layer: the loss of this micro-batch, NaN if it
        /// is not written.
        loss: *mut f64,
        /// BACKWARD: what the last layer multiplies the gradient of the loss by:
        /// trireme_optimizer_loss_scale(), divided by micro_batches where gradients are averaged
        /// over ranks but added up over micro-batches.
        loss_scale: f64,
        /// As handed to trireme_trainer_step() or trireme_trainer_evaluate().
        batch: *mut c_void,
    }
    /// One layer.
    trireme_layer {
        /// sizeof this struct as the caller knows it; the same in all of a list.
        struct_size: u32,
        /// Must be 0.
        flags: u32,
        /// For messages; UTF-8, at most 255 bytes; required; copied.
        name: *const c_char,
        /// Number of its first parameter.
        first_parameter: u64,
        /// How many, by their numbers one after the other; 0: none.
        parameter_count: u64,
        /// Required.
        forward: trireme_layer_callback,
        /// Required.
        backward: trireme_layer_callback,
        /// Handed to both.
        user_data: *mut c_void,
        /// Size of its output for one micro-batch; may be 0 of the last one.
        output_bytes: u64,
        /// What forward keeps for backward besides, for one micro-batch.
        saved_bytes: u64,
    }
    /// What a step has done.
    trireme_trainer_metrics {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// 1: a rank has asked to stop, in or after the step before, or by now.
        stop: i32,
        /// 1: with the optimizer's loss_scale, a gradient was inf or NaN and nothing was updated.
        skipped: i32,
        /// 0.
        reserved: u32,
        /// trireme_optimizer_step_count() after the step.
        step: u64,
        /// Over all ranks.
        micro_batches: u64,
        /// As sent_step_bytes of trireme_model_memory.
        sent_bytes: u64,
        /// Mean over all micro-batches; the same on all ranks.
        loss: f64,
        /// As trireme_optimizer_gradient_norm(); -1 without max_norm, and of a step that was
        /// skipped.
        gradient_norm: f64,
        /// That the step had.
        learning_rate: f64,
        /// Of the optimizer, that the step had.
        loss_scale: f64,
        /// That the step took on this rank.
        seconds: f64,
        /// Of these, those in which it waited for communication.
        exposed_seconds: f64,
    }
    /// Start from TRIREME_TRAINER_OPTIONS_INIT.
    trireme_trainer_options {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// Must be 0.
        flags: u32,
        /// Of each rank in a step.
        micro_batches: u32,
        /// Must be 0.
        reserved: u32,
        /// Keep the output of every so many-th layer and compute the rest again.
        checkpoint_every: u64,
        /// Most that activations and the gradients of outputs may take; checkpoints are set so that
        /// as few layers as possible are computed again.
        activation_budget_bytes: u64,
        /// From which random_seed comes.
        seed: u64,
        /// May differ between ranks.
        after_step: trireme_trainer_callback,
        /// Handed to after_step.
        user_data: *mut c_void,
        /// A directory: what is kept between forward and backward lies in a file in it.
        offload_path: *const c_char,
        /// Most memory for the window through which it streams.
        offload_buffer_bytes: u64,
    }
    /// What a trainer looks like on this rank.
    trireme_trainer_info {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// Most that a rank has in a step.
        micro_batches: u32,
        /// Layers.
        layers: u64,
        /// Into which they are cut; 1: everything is kept.
        stretches: u64,
        /// Layers whose forward runs twice in a micro-batch.
        recomputed: u64,
        /// Outputs that are kept of all stretches but the last.
        planned_checkpoint_bytes: u64,
        /// Outputs and saved of the largest stretch.
        planned_stretch_bytes: u64,
        /// Gradients of outputs: of two neighbouring layers, the largest of those with an even and
        /// with an odd number.
        planned_gradient_bytes: u64,
        /// Where backward writes gradients that have no view in the model: the most that one layer
        /// has.
        planned_parameter_gradient_bytes: u64,
        /// Losses and answers of all ranks.
        planned_exchange_bytes: u64,
        /// The sum of these, counted where memory is allocated.
        allocated_bytes: u64,
        /// What activations and gradients of outputs take if everything is kept.
        largest_bytes: u64,
        /// The least activation_budget_bytes that works.
        least_bytes: u64,
        /// With offload_path: the window, and what could not be written.
        planned_window_bytes: u64,
    }
}

inits! {
    trireme_layer
    trireme_trainer_metrics
    trireme_trainer_options
    trireme_trainer_info
}

extern "C" {
    pub fn trireme_trainer_create(
        optimizer: *mut trireme_optimizer,
        layers: *const trireme_layer,
        layer_count: u64,
        options: *const trireme_trainer_options,
        out_trainer: *mut *mut trireme_trainer,
    ) -> trireme_status;
    pub fn trireme_trainer_destroy(trainer: *mut trireme_trainer);
    pub fn trireme_trainer_step(
        trainer: *mut trireme_trainer,
        batch: *mut c_void,
        out_metrics: *mut trireme_trainer_metrics,
    ) -> trireme_status;
    pub fn trireme_trainer_evaluate(
        trainer: *mut trireme_trainer,
        batch: *mut c_void,
        out_loss: *mut f64,
    ) -> trireme_status;
    pub fn trireme_trainer_request_stop(trainer: *mut trireme_trainer) -> trireme_status;
    pub fn trireme_trainer_get_info(
        trainer: *const trireme_trainer,
        out_info: *mut trireme_trainer_info,
    ) -> trireme_status;
    pub fn trireme_trainer_get_offload_info(
        trainer: *const trireme_trainer,
        out_info: *mut trireme_offload_info,
    ) -> trireme_status;
}
