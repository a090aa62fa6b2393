//! The C ABI of libtrireme, name for name: constants, structs and functions of `include/trireme/`.
//!
//! The comments there are the specification, ownership and thread safety included; the `trireme`
//! crate is the safe layer above. `tests/` compares this file with the library's list of exported
//! symbols and with the layout of the released structs.
#![no_std]
#![allow(non_camel_case_types)]

use core::ffi::{c_char, c_void};
use core::marker::{PhantomData, PhantomPinned};

mod constants;
pub use constants::*;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        ///
        /// Opaque: cannot be made or sized here, and its address is a token that nobody follows.
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _data: [u8; 0],
            _marker: PhantomData<(*mut u8, PhantomPinned)>,
        }
    )*};
}

handles! {
    /// A group of ranks that can communicate, as one rank sees it.
    trireme_communicator
    /// One started operation.
    trireme_request
    /// Memory that the ranks of one host can read directly.
    trireme_buffer
    /// A model whose parameters are spread over ranks.
    trireme_model
    /// The update rule of a model and its state on this rank.
    trireme_optimizer
}

pub type trireme_operation = i32;
pub type trireme_dtype = i32;
pub type trireme_reduction = i32;
pub type trireme_device_kind = i32;
pub type trireme_status = i32;
pub type trireme_log_level = i32;
pub type trireme_strategy = i32;
pub type trireme_optimizer_kind = i32;

/// Hears log messages; see `log.h`.
pub type trireme_log_callback = Option<
    unsafe extern "C" fn(level: trireme_log_level, message: *const c_char, user_data: *mut c_void),
>;
/// Called once when a request is done; see `request.h`.
pub type trireme_completion_callback =
    Option<unsafe extern "C" fn(status: trireme_status, user_data: *mut c_void)>;
/// A caller's own update rule; see `optimizer_shard.h`.
pub type trireme_update_callback =
    Option<unsafe extern "C" fn(update: *const trireme_update, user_data: *mut c_void) -> i32>;

macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {
        $($(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $($(#[$field_doc])* pub $field: $kind,)* })*

        /// The layout as lines "struct NAME size N" and "field NAME.FIELD offset O size S", given
        /// to `line` part by part: name, field or "", offset, size.
        #[doc(hidden)]
        pub fn layout(line: &mut dyn FnMut(&str, &str, usize, usize)) {
            $(line(stringify!($name), "", 0, core::mem::size_of::<$name>());
            $(line(stringify!($name), stringify!($field), core::mem::offset_of!($name, $field),
                   core::mem::size_of::<$kind>());)*)*
        }
    };
}

structs! {
    /// A question for trireme_capability(). In every field 0 or NULL asks about "any".
    trireme_capability_query {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// An operation, or 0.
        operation: trireme_operation,
        /// An element type, or 0.
        dtype: trireme_dtype,
        /// A reduction, or 0.
        reduction: trireme_reduction,
        /// A device, or 0.
        device: trireme_device_kind,
        /// Must be 0.
        reserved: u32,
        /// "local", or NULL.
        backend: *const c_char,
    }
    /// A device. All zero is the host.
    trireme_device {
        /// TRIREME_DEVICE_HOST and so on.
        kind: trireme_device_kind,
        /// Number of the device among those of its kind; 0 for the host.
        index: i32,
    }
    /// A queue of a device. All zero is none, the only one for the host.
    trireme_stream {
        /// Kind of device the stream belongs to; 0 for none.
        kind: trireme_device_kind,
        /// Must be 0.
        reserved: u32,
        /// cudaStream_t, for example.
        native: *mut c_void,
    }
    /// The last failure of this thread in parts. Set struct_size before the call.
    trireme_error_info {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// The status of the last failed call; TRIREME_OK if none failed.
        code: trireme_status,
        /// Number of the operation in its communicator, from 1; 0 if none.
        sequence: u64,
        /// How many ranks are to blame, also those past the array's end.
        blamed_count: u32,
        /// errno, or 0.
        system_error: i32,
        /// The first ranks to blame, ascending.
        blamed: [i32; TRIREME_MAX_BLAMED_RANKS],
        /// "all_reduce"; empty if the failure is of no operation.
        operation: [c_char; 32],
        /// Name of the communicator; empty if none.
        communicator: [c_char; 64],
    }
    /// Start from TRIREME_COMMUNICATOR_OPTIONS_INIT. In every field 0 or NULL means the default.
    trireme_communicator_options {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// 0 <= rank < world_size; read from the environment by env://.
        rank: i32,
        /// Number of ranks; required, but read from the environment by env://.
        world_size: i32,
        /// Must be 0.
        flags: u32,
        /// "local://NAME" (threads of this process), "host://NAME" (processes of this host) or
        /// "env://" (RANK, WORLD_SIZE and TRIREME_RENDEZVOUS, or MASTER_ADDR, MASTER_PORT and
        /// TRIREME_TOKEN); UTF-8; required.
        rendezvous: *const c_char,
        /// "local". Default: the fastest one for the rendezvous.
        backend: *const c_char,
        /// Name in messages, at most 63 bytes. Default: the rendezvous.
        name: *const c_char,
        /// Longest any blocking call may wait. Default: 300 s.
        timeout_ns: u64,
        /// Where buffers live. Default: the host.
        device: trireme_device,
    }
    /// How to make a child. Start from TRIREME_GROUP_OPTIONS_INIT. 0 or NULL means the default.
    trireme_group_options {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// Must be 0.
        flags: u32,
        /// Name of the child in messages, at most 63 bytes; need not be the same on all ranks.
        /// Default: the parent's and a number.
        name: *const c_char,
        /// Longest this call may wait. Default: the parent's timeout.
        timeout_ns: u64,
    }
    /// What a communicator has done so far. Set struct_size before the call.
    trireme_communicator_statistics {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// 0.
        reserved: u32,
        /// Collectives and messages that ended, well or not.
        operations: u64,
        /// Those that ended in a failure.
        failures: u64,
        /// Bytes of this rank that peers were given to read, by collectives and messages.
        bytes_sent: u64,
        /// Bytes of peers that this rank read.
        bytes_received: u64,
    }
    /// Options of one call; NULL in place of a pointer to it means all defaults.
    trireme_operation_options {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// Must be 0.
        flags: u32,
        /// Deadline of this call from now. Default: the communicator's.
        timeout_ns: u64,
        /// Factor of TRIREME_SCALED_SUM; must be 0 for other reductions.
        scale: f64,
        /// Must be all zero for the host.
        stream: trireme_stream,
    }
    /// Start from TRIREME_MODEL_OPTIONS_INIT. In every field 0 means the default.
    trireme_model_options {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// Required.
        strategy: trireme_strategy,
        /// `TRIREME_GRADIENTS_*`.
        gradients: i32,
        /// Leaves of the global batch for reproducible training; 0: reduction in rank order. At
        /// most 65,536.
        leaves: u32,
        /// Gradients are reduced once this much is ready. Default: 25 MiB; a unit is never cut.
        bucket_bytes: u64,
        /// zero3: gathered units may take this much beyond the one in use. Default: the largest
        /// unit, so that one is prefetched.
        prefetch_bytes: u64,
        /// Longest any call may wait. Default: the communicator's.
        timeout_ns: u64,
    }
    /// Describes one parameter. Start from TRIREME_PARAMETER_OPTIONS_INIT.
    trireme_parameter_options {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// TRIREME_PARAMETER_FROZEN or 0.
        flags: u32,
        /// TRIREME_DTYPE_F32 or TRIREME_DTYPE_F64; one per unit.
        dtype: trireme_dtype,
        /// Numbers at `shape`; 0 is a scalar. At most 16.
        dimensions: u32,
        /// Copied. An extent may be 0.
        shape: *const u64,
        /// Unique in the model; UTF-8, at most 255 bytes; required; copied.
        name: *const c_char,
        /// Name of the unit. Default: a unit of the parameter's own name. Parameters of one unit
        /// are added one after the other.
        unit: *const c_char,
        /// Name of an earlier parameter that this one is an alias of: same dtype and shape, same
        /// memory, gradients added.
        tied_to: *const c_char,
    }
    /// What a sealed model looks like. Set struct_size before the call.
    trireme_model_info {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// As created.
        strategy: trireme_strategy,
        /// This rank.
        rank: i32,
        /// Number of ranks.
        world_size: i32,
        /// As created; 0 if not reproducible.
        leaves: u32,
        /// Most leaves a rank has in a step, ceil(leaves / world size); 0 if not reproducible.
        micro_batches: u32,
        /// Parameters added, aliases included.
        parameters: u64,
        /// Units.
        units: u64,
        /// Elements of the flat vectors: all parameters in the order added, aliases left out.
        elements: u64,
        /// Buckets in which gradients are reduced.
        buckets: u64,
    }
    /// What one unit looks like on this rank. Set struct_size before the call.
    trireme_unit_info {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// Type of its elements.
        dtype: trireme_dtype,
        /// Elements of the whole unit.
        elements: u64,
        /// First element this rank owns.
        shard_first: u64,
        /// Elements this rank owns.
        shard_count: u64,
        /// Where the unit begins in the flat vectors.
        flat_first: u64,
    }
    /// Bytes of this rank by kind: as the plan says, and as really allocated. Set struct_size
    /// before the call.
    trireme_model_memory {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// 0.
        reserved: u32,
        /// Parameters held for good.
        planned_parameters: u64,
        /// Gradients held for good.
        planned_gradients: u64,
        /// State of the optimizer; 0 before one is created.
        planned_optimizer_state: u64,
        /// Units and buckets in flight, partial sums of the tree.
        planned_working: u64,
        /// As planned_parameters, counted where memory is allocated.
        allocated_parameters: u64,
        /// As planned_gradients, counted where memory is allocated.
        allocated_gradients: u64,
        /// As planned_optimizer_state, counted where memory is allocated.
        allocated_optimizer_state: u64,
        /// As planned_working, counted where memory is allocated.
        allocated_working: u64,
        /// Bytes this rank gives its peers to read in a step of one micro-batch.
        planned_step_bytes: u64,
        /// Bytes it gave in the last step, counted where they are sent.
        sent_step_bytes: u64,
    }
    /// One piece of the model for a caller's own update rule: the trainable part of one parameter
    /// that this rank owns.
    trireme_update {
        /// sizeof this struct as the library knows it.
        struct_size: u32,
        /// Type of parameters, gradients and states.
        dtype: trireme_dtype,
        /// Number of the parameter.
        parameter: u64,
        /// Which of its elements comes first here.
        first: u64,
        /// Elements; 1 or more.
        count: u64,
        /// Number of this step, from 1.
        step: u64,
        /// As set.
        learning_rate: f64,
        /// `count` elements, to be updated.
        parameters: *mut c_void,
        /// `count` elements, reduced and clipped.
        gradients: *const c_void,
        /// `count` elements each, 0 before the first step; NULL past state_count.
        states: [*mut c_void; TRIREME_MAX_STATES],
    }
    /// Start from TRIREME_OPTIMIZER_OPTIONS_INIT. In every field 0 or NULL means the default.
    trireme_optimizer_options {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// Required.
        kind: trireme_optimizer_kind,
        /// TRIREME_OPTIMIZER_NESTEROV or 0.
        flags: u32,
        /// USER: state vectors, at most TRIREME_MAX_STATES; 0 for the other kinds.
        state_count: u32,
        /// Default: 0.001.
        learning_rate: f64,
        /// SGD; 0 is none. In [0, 1).
        momentum: f64,
        /// ADAM, ADAMW. Default: 0.9. In (0, 1).
        beta1: f64,
        /// ADAM, ADAMW. Default: 0.999. In (0, 1).
        beta2: f64,
        /// ADAM, ADAMW. Default: 1e-8.
        epsilon: f64,
        /// 0 is none.
        weight_decay: f64,
        /// The global L2 norm of all gradients is clipped to this; 0 is no clipping.
        max_norm: f64,
        /// USER: the rule. NULL for the other kinds.
        update: trireme_update_callback,
        /// Handed to `update`.
        user_data: *mut c_void,
    }
}

macro_rules! inits {
    ($($name:ident)*) => {$(
        impl $name {
            /// What the `_INIT` macro of the header gives: the size is set, all else is 0.
            pub const fn init() -> Self {
                // SAFETY: numbers, arrays of numbers, pointers and optional functions; all of them
                // may be 0.
                let mut value: Self = unsafe { core::mem::zeroed() };
                value.struct_size = core::mem::size_of::<Self>() as u32;
                value
            }
        }
    )*};
}

inits! {
    trireme_capability_query
    trireme_error_info
    trireme_communicator_options
    trireme_group_options
    trireme_communicator_statistics
    trireme_operation_options
    trireme_model_options
    trireme_parameter_options
    trireme_model_info
    trireme_unit_info
    trireme_model_memory
    trireme_optimizer_options
}

extern "C" {
    // version.h
    pub fn trireme_version() -> u32;
    pub fn trireme_build_info() -> *const c_char;
    pub fn trireme_capability(query: *const trireme_capability_query) -> trireme_status;
    // types.h
    pub fn trireme_dtype_size(dtype: trireme_dtype) -> u64;
    pub fn trireme_dtype_name(dtype: trireme_dtype) -> *const c_char;
    pub fn trireme_reduction_name(reduction: trireme_reduction) -> *const c_char;
    // status.h
    pub fn trireme_status_name(status: trireme_status) -> *const c_char;
    pub fn trireme_last_error() -> *const c_char;
    pub fn trireme_last_error_info(out_info: *mut trireme_error_info) -> trireme_status;
    // log.h
    pub fn trireme_set_log_callback(
        callback: trireme_log_callback,
        level: trireme_log_level,
        user_data: *mut c_void,
    ) -> trireme_status;
    // failpoint.h
    pub fn trireme_failpoint_count() -> u32;
    pub fn trireme_failpoint_name(index: u32) -> *const c_char;
    pub fn trireme_failpoint_set(text: *const c_char) -> trireme_status;
    pub fn trireme_failpoint_hits(name: *const c_char, out_hits: *mut u64) -> trireme_status;
    // request.h
    pub fn trireme_request_test(
        request: *const trireme_request,
        out_done: *mut i32,
    ) -> trireme_status;
    pub fn trireme_request_wait(request: *const trireme_request, timeout_ns: u64)
        -> trireme_status;
    pub fn trireme_request_wait_any(
        requests: *const *const trireme_request,
        count: u64,
        timeout_ns: u64,
        out_index: *mut u64,
    ) -> trireme_status;
    pub fn trireme_request_cancel(request: *mut trireme_request) -> trireme_status;
    pub fn trireme_request_on_complete(
        request: *mut trireme_request,
        callback: trireme_completion_callback,
        user_data: *mut c_void,
    ) -> trireme_status;
    pub fn trireme_request_fd(request: *mut trireme_request, out_fd: *mut i32) -> trireme_status;
    pub fn trireme_request_destroy(request: *mut trireme_request);
    // buffer.h
    pub fn trireme_buffer_alloc(
        communicator: *mut trireme_communicator,
        bytes: u64,
        out_buffer: *mut *mut trireme_buffer,
    ) -> trireme_status;
    pub fn trireme_buffer_destroy(buffer: *mut trireme_buffer);
    pub fn trireme_buffer_data(
        buffer: *const trireme_buffer,
        out_data: *mut *mut c_void,
    ) -> trireme_status;
    pub fn trireme_buffer_size(
        buffer: *const trireme_buffer,
        out_bytes: *mut u64,
    ) -> trireme_status;
    // communicator.h
    pub fn trireme_communicator_create(
        options: *const trireme_communicator_options,
        out_communicator: *mut *mut trireme_communicator,
    ) -> trireme_status;
    pub fn trireme_communicator_destroy(communicator: *mut trireme_communicator);
    pub fn trireme_communicator_wait_ready(
        communicator: *const trireme_communicator,
        timeout_ns: u64,
    ) -> trireme_status;
    pub fn trireme_communicator_rank(
        communicator: *const trireme_communicator,
        out_rank: *mut i32,
    ) -> trireme_status;
    pub fn trireme_communicator_world_size(
        communicator: *const trireme_communicator,
        out_world_size: *mut i32,
    ) -> trireme_status;
    pub fn trireme_communicator_backend(
        communicator: *const trireme_communicator,
        text: *mut c_char,
        capacity: u64,
        out_length: *mut u64,
    ) -> trireme_status;
    pub fn trireme_communicator_abort(
        communicator: *mut trireme_communicator,
        reason: *const c_char,
    ) -> trireme_status;
    pub fn trireme_communicator_get_statistics(
        communicator: *const trireme_communicator,
        out_statistics: *mut trireme_communicator_statistics,
    ) -> trireme_status;
    pub fn trireme_communicator_flight_record(
        communicator: *const trireme_communicator,
        text: *mut c_char,
        capacity: u64,
        out_length: *mut u64,
    ) -> trireme_status;
    pub fn trireme_communicator_ranks(
        communicator: *const trireme_communicator,
        out_ranks: *mut i32,
        capacity: u64,
    ) -> trireme_status;
    pub fn trireme_communicator_split(
        communicator: *mut trireme_communicator,
        color: i32,
        key: i32,
        options: *const trireme_group_options,
        out_communicator: *mut *mut trireme_communicator,
    ) -> trireme_status;
    pub fn trireme_communicator_subgroup(
        communicator: *mut trireme_communicator,
        ranks: *const i32,
        count: u64,
        options: *const trireme_group_options,
        out_communicator: *mut *mut trireme_communicator,
    ) -> trireme_status;
    pub fn trireme_communicator_duplicate(
        communicator: *mut trireme_communicator,
        options: *const trireme_group_options,
        out_communicator: *mut *mut trireme_communicator,
    ) -> trireme_status;
    // collectives.h
    pub fn trireme_all_reduce(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_all_reduce_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_reduce_scatter(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        receive_count: u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_reduce_scatter_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        receive_count: u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_reduce_scatter_v(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        counts: *const u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_reduce_scatter_v_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        counts: *const u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_all_gather(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        send_count: u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_all_gather_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        send_count: u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_all_gather_v(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        counts: *const u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_all_gather_v_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        counts: *const u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_broadcast(
        communicator: *mut trireme_communicator,
        data: *mut c_void,
        count: u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_broadcast_start(
        communicator: *mut trireme_communicator,
        data: *mut c_void,
        count: u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_barrier(
        communicator: *mut trireme_communicator,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_barrier_start(
        communicator: *mut trireme_communicator,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_send(
        communicator: *mut trireme_communicator,
        data: *const c_void,
        count: u64,
        dtype: trireme_dtype,
        to: i32,
        tag: u64,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_send_start(
        communicator: *mut trireme_communicator,
        data: *const c_void,
        count: u64,
        dtype: trireme_dtype,
        to: i32,
        tag: u64,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_receive(
        communicator: *mut trireme_communicator,
        data: *mut c_void,
        count: u64,
        dtype: trireme_dtype,
        from: i32,
        tag: u64,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_receive_start(
        communicator: *mut trireme_communicator,
        data: *mut c_void,
        count: u64,
        dtype: trireme_dtype,
        from: i32,
        tag: u64,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
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
    // optimizer_shard.h
    pub fn trireme_optimizer_kind_name(kind: trireme_optimizer_kind) -> *const c_char;
    pub fn trireme_optimizer_create(
        model: *mut trireme_model,
        options: *const trireme_optimizer_options,
        out_optimizer: *mut *mut trireme_optimizer,
    ) -> trireme_status;
    pub fn trireme_optimizer_destroy(optimizer: *mut trireme_optimizer);
    pub fn trireme_optimizer_step(optimizer: *mut trireme_optimizer) -> trireme_status;
    pub fn trireme_optimizer_set_learning_rate(
        optimizer: *mut trireme_optimizer,
        learning_rate: f64,
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
}
