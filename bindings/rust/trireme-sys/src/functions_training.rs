//! The functions of models and their optimizers, and what optimizers tell of their state.

use std::os::raw::{c_char, c_void};

use crate::*;

structs! {
    /// What an optimizer counts; see the header.
    trireme_optimizer_counters {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// TRIREME_OPTIMIZER_COUNTERS_VERSION.
        version: u32,
        /// Steps that were made.
        steps: u64,
        /// As set: with a schedule, what it multiplies.
        learning_rate: f64,
        /// What the next loss is multiplied by; 0: losses are not scaled.
        loss_scale: f64,
        /// Steps since the scale grew or one was skipped.
        clean_steps: u64,
        /// Skipped steps since the scale grew.
        overflows: u64,
        /// Skipped steps in all.
        skipped_steps: u64,
        /// By number of the parameter: the steps in which it had a gradient.
        parameter_steps: *mut u64,
        /// Numbers at `parameter_steps`; before a get, for how many there is room.
        parameter_count: u64,
        /// By group of parameters.
        group_rate_factors: *mut f64,
        /// Numbers at `group_rate_factors`; before a get, for how many there is room.
        group_count: u64,
    }
    /// A stretch of the state of training that this rank owns. Set struct_size before the call.
    trireme_state_range {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// TRIREME_STATE_*.
        kind: i32,
        /// Type of the elements.
        dtype: trireme_dtype,
        /// OPTIMIZER: which state vector, from 0; the header names those of each rule.
        vector: u32,
        /// Number of the parameter.
        parameter: u64,
        /// Its name; lives as long as the model.
        name: *const c_char,
        /// Its whole shape; lives as long as the model. NULL for a scalar.
        shape: *const u64,
        /// Numbers at `shape`.
        dimensions: u32,
        /// 0.
        reserved: u32,
        /// Which of its elements, in row-major order, comes first.
        first: u64,
        /// Elements; 1 or more.
        count: u64,
        /// Where they lie, good until the optimizer is destroyed.
        data: *mut c_void,
    }
}

extern "C" {
    // model_shard.h
    pub fn trireme_strategy_name(strategy: trireme_strategy) -> *const c_char;
    pub fn trireme_strategy_parse(
        text: *const c_char,
        out_strategy: *mut trireme_strategy,
    ) -> trireme_status;
    pub fn trireme_model_create(
        communicator: *mut trireme_communicator,
        options: *const trireme_model_options,
        out_model: *mut *mut trireme_model,
    ) -> trireme_status;
    pub fn trireme_model_destroy(model: *mut trireme_model);
    pub fn trireme_model_add_parameter(
        model: *mut trireme_model,
        options: *const trireme_parameter_options,
        out_parameter: *mut u64,
    ) -> trireme_status;
    pub fn trireme_model_seal(model: *mut trireme_model) -> trireme_status;
    pub fn trireme_model_get_info(
        model: *const trireme_model,
        out_info: *mut trireme_model_info,
    ) -> trireme_status;
    pub fn trireme_model_get_unit_info(
        model: *const trireme_model,
        unit: u64,
        out_info: *mut trireme_unit_info,
    ) -> trireme_status;
    pub fn trireme_model_get_memory(
        model: *const trireme_model,
        out_memory: *mut trireme_model_memory,
    ) -> trireme_status;
    pub fn trireme_model_get_offload_info(
        model: *const trireme_model,
        out_info: *mut trireme_offload_info,
    ) -> trireme_status;
    pub fn trireme_model_get_statistics(
        model: *const trireme_model,
        out_statistics: *mut trireme_model_statistics,
    ) -> trireme_status;
    pub fn trireme_model_check_replicas(model: *mut trireme_model) -> trireme_status;
    pub fn trireme_model_set_parameters(
        model: *mut trireme_model,
        values: *const c_void,
        count: u64,
        dtype: trireme_dtype,
        root: i32,
    ) -> trireme_status;
    pub fn trireme_model_get_parameters(
        model: *mut trireme_model,
        values: *mut c_void,
        count: u64,
        dtype: trireme_dtype,
    ) -> trireme_status;
    pub fn trireme_model_gather_unit(model: *mut trireme_model, unit: u64) -> trireme_status;
    pub fn trireme_model_release_unit(model: *mut trireme_model, unit: u64) -> trireme_status;
    pub fn trireme_model_parameter_data(
        model: *const trireme_model,
        parameter: u64,
        out_data: *mut *mut c_void,
        out_count: *mut u64,
    ) -> trireme_status;
    pub fn trireme_model_leaf(
        model: *const trireme_model,
        micro_batch: u32,
        out_leaf: *mut u32,
    ) -> trireme_status;
    pub fn trireme_model_begin_backward(model: *mut trireme_model, flags: u32) -> trireme_status;
    pub fn trireme_model_gradient_data(
        model: *mut trireme_model,
        parameter: u64,
        out_data: *mut *mut c_void,
        out_count: *mut u64,
        out_dtype: *mut trireme_dtype,
        out_adds: *mut i32,
    ) -> trireme_status;
    pub fn trireme_model_gradient_ready(
        model: *mut trireme_model,
        parameter: u64,
        gradient: *const c_void,
        count: u64,
        dtype: trireme_dtype,
    ) -> trireme_status;
    pub fn trireme_model_end_backward(model: *mut trireme_model) -> trireme_status;
    pub fn trireme_model_accumulate_flat(
        model: *mut trireme_model,
        gradients: *const c_void,
        count: u64,
        dtype: trireme_dtype,
        flags: u32,
    ) -> trireme_status;
    pub fn trireme_model_discard_gradients(model: *mut trireme_model) -> trireme_status;
    // schedule.h
    pub fn trireme_schedule_value(
        options: *const trireme_schedule_options,
        step: u64,
        out_factor: *mut f64,
    ) -> trireme_status;
    // optimizer_shard.h
    pub fn trireme_optimizer_kind_name(kind: trireme_optimizer_kind) -> *const c_char;
    pub fn trireme_optimizer_create(
        model: *mut trireme_model,
        options: *const trireme_optimizer_options,
        out_optimizer: *mut *mut trireme_optimizer,
    ) -> trireme_status;
    pub fn trireme_optimizer_destroy(optimizer: *mut trireme_optimizer);
    pub fn trireme_optimizer_step(optimizer: *mut trireme_optimizer) -> trireme_status;
    pub fn trireme_optimizer_join(
        optimizer: *mut trireme_optimizer,
        out_steps: *mut u64,
    ) -> trireme_status;
    pub fn trireme_optimizer_set_learning_rate(
        optimizer: *mut trireme_optimizer,
        learning_rate: f64,
    ) -> trireme_status;
    pub fn trireme_optimizer_set_group_rate_factor(
        optimizer: *mut trireme_optimizer,
        group: u64,
        factor: f64,
    ) -> trireme_status;
    pub fn trireme_optimizer_set_schedule(
        optimizer: *mut trireme_optimizer,
        options: *const trireme_schedule_options,
    ) -> trireme_status;
    pub fn trireme_optimizer_step_rate(
        optimizer: *mut trireme_optimizer,
        out_rate: *mut f64,
    ) -> trireme_status;
    pub fn trireme_optimizer_learning_rate(
        optimizer: *const trireme_optimizer,
        out_learning_rate: *mut f64,
    ) -> trireme_status;
    pub fn trireme_optimizer_step_count(
        optimizer: *const trireme_optimizer,
        out_steps: *mut u64,
    ) -> trireme_status;
    pub fn trireme_optimizer_gradient_norm(
        optimizer: *const trireme_optimizer,
        out_norm: *mut f64,
    ) -> trireme_status;
    pub fn trireme_optimizer_group_norm(
        optimizer: *const trireme_optimizer,
        group: u64,
        out_norm: *mut f64,
    ) -> trireme_status;
    pub fn trireme_optimizer_loss_scale(
        optimizer: *const trireme_optimizer,
        out_scale: *mut f64,
    ) -> trireme_status;
    pub fn trireme_optimizer_get_loss_scale_info(
        optimizer: *const trireme_optimizer,
        out_info: *mut trireme_loss_scale_info,
    ) -> trireme_status;
    pub fn trireme_optimizer_get_counters(
        optimizer: *const trireme_optimizer,
        counters: *mut trireme_optimizer_counters,
    ) -> trireme_status;
    pub fn trireme_optimizer_restore(
        optimizer: *mut trireme_optimizer,
        counters: *const trireme_optimizer_counters,
    ) -> trireme_status;
    pub fn trireme_optimizer_range_count(
        optimizer: *const trireme_optimizer,
        out_count: *mut u64,
    ) -> trireme_status;
    pub fn trireme_optimizer_get_range(
        optimizer: *const trireme_optimizer,
        index: u64,
        out_range: *mut trireme_state_range,
    ) -> trireme_status;
    pub fn trireme_optimizer_read_range(
        optimizer: *const trireme_optimizer,
        index: u64,
        data: *mut c_void,
        bytes: u64,
    ) -> trireme_status;
    pub fn trireme_optimizer_write_range(
        optimizer: *mut trireme_optimizer,
        index: u64,
        data: *const c_void,
        bytes: u64,
    ) -> trireme_status;
    pub fn trireme_optimizer_get_offload_info(
        optimizer: *const trireme_optimizer,
        out_info: *mut trireme_offload_info,
    ) -> trireme_status;
    pub fn trireme_optimizer_saved_bytes(
        optimizer: *const trireme_optimizer,
        out_bytes: *mut u64,
    ) -> trireme_status;
    pub fn trireme_optimizer_save(
        optimizer: *const trireme_optimizer,
        state: *mut c_void,
        capacity: u64,
        out_bytes: *mut u64,
    ) -> trireme_status;
    pub fn trireme_optimizer_load(
        optimizer: *mut trireme_optimizer,
        state: *const c_void,
        bytes: u64,
    ) -> trireme_status;
}
