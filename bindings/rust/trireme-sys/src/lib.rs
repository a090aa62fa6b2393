//! The C ABI of libtrireme, name for name: constants, structs and functions of `include/trireme/`.
//!
//! The comments there are the specification, ownership and thread safety included; the `trireme`
//! crate is the safe layer above. `tests/` compares this file with the library's list of exported
//! symbols and with the layout of the released structs.
#![allow(non_camel_case_types)]

use core::marker::{PhantomData, PhantomPinned};
use std::os::raw::{c_char, c_void};

#[macro_use]
mod structs;
mod constants;
mod functions;
pub use constants::*;
pub use functions::*;

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
    /// Ranks arranged in named axes.
    trireme_mesh
    /// One started operation.
    trireme_request
    /// Memory that the ranks of one host can read directly.
    trireme_buffer
    /// A model whose parameters are spread over ranks.
    trireme_model
    /// The update rule of a model and its state on this rank.
    trireme_optimizer
    /// Layers of a model that are trained as one.
    trireme_trainer
    /// The key-value store of a job.
    trireme_store
}

pub type trireme_operation = i32;
pub type trireme_dtype = i32;
pub type trireme_reduction = i32;
pub type trireme_device_kind = i32;
pub type trireme_priority = i32;
pub type trireme_algorithm = i32;
pub type trireme_status = i32;
pub type trireme_log_level = i32;
pub type trireme_mesh_order = i32;
pub type trireme_strategy = i32;
pub type trireme_optimizer_kind = i32;
pub type trireme_rate_adjustment = i32;
pub type trireme_schedule_kind = i32;

/// A caller's own schedule of learning rates; see `schedule.h`.
pub type trireme_schedule_callback =
    Option<unsafe extern "C" fn(step: u64, user_data: *mut c_void) -> f64>;

/// Hears log messages; see `log.h`.
pub type trireme_log_callback = Option<
    unsafe extern "C" fn(level: trireme_log_level, message: *const c_char, user_data: *mut c_void),
>;
/// Called once when a request is done; see `request.h`.
pub type trireme_completion_callback =
    Option<unsafe extern "C" fn(status: trireme_status, user_data: *mut c_void)>;
/// Hands one frame to the transport; see `transport.h`.
pub type trireme_transport_send = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        to: i32,
        data: *const c_void,
        bytes: u64,
        timeout_ns: u64,
    ) -> i32,
>;
/// Takes one frame of any rank from the transport; see `transport.h`.
pub type trireme_transport_receive = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        out_from: *mut i32,
        data: *mut c_void,
        capacity: u64,
        out_bytes: *mut u64,
        timeout_ns: u64,
    ) -> i32,
>;
/// Says that the library will not call the transport again; see `transport.h`.
pub type trireme_transport_released = Option<unsafe extern "C" fn(user_data: *mut c_void)>;
/// A caller's own work on each bucket; see `model_shard.h`.
pub type trireme_bucket_callback =
    Option<unsafe extern "C" fn(bucket: *const trireme_bucket, user_data: *mut c_void) -> i32>;
/// A caller's own update rule; see `optimizer_shard.h`.
pub type trireme_update_callback =
    Option<unsafe extern "C" fn(update: *const trireme_update, user_data: *mut c_void) -> i32>;

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
        /// "local", "host", "gloo", "mpi", or NULL.
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
        /// 1: the group can go on, and all ranks that got this call the same function again. Set by
        /// trireme_communicator_shrink() if a rank was lost before the new group was whole. Else 0.
        try_again: u32,
        /// 0.
        reserved: u32,
    }
    /// Start from TRIREME_COMMUNICATOR_OPTIONS_INIT. In every field 0 or NULL means the default.
    trireme_communicator_options {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// 0 <= rank < world_size; env:// reads it from the environment, mpi:// asks MPI.
        rank: i32,
        /// Number of ranks; required, but env:// reads it from the environment, mpi:// asks MPI.
        world_size: i32,
        /// Must be 0.
        flags: u32,
        /// "local://NAME" (threads of this process), "host://NAME" (processes of this host), "mpi://"
        /// (all ranks of mpirun) or "env://" (RANK, WORLD_SIZE and TRIREME_RENDEZVOUS, or MASTER_ADDR, MASTER_PORT and
        /// TRIREME_TOKEN); UTF-8; required.
        rendezvous: *const c_char,
        /// "local", "host", "mpi", or "gloo" with tcp://. Default: the one for the rendezvous.
        backend: *const c_char,
        /// Name in messages, at most 63 bytes. Default: the rendezvous.
        name: *const c_char,
        /// Longest any blocking call may wait. Default: 300 s.
        timeout_ns: u64,
        /// Where buffers live. Default: the host.
        device: trireme_device,
        /// What carries the bytes of "host-transport://NAME"; copied. Else NULL.
        transport: *const trireme_transport,
        /// A wait for a peer that lasts this long is told to the log, and again whenever it has
        /// doubled; u64::MAX: never. Default: 10 s.
        stall_warning_ns: u64,
    }
    /// Functions that carry frames between the ranks of one group.
    trireme_transport {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// Must be 0.
        flags: u32,
        /// Handed to every function; may be NULL.
        user_data: *mut c_void,
        /// Longest frame, at least TRIREME_TRANSPORT_FRAME_BYTES_MIN; 0: 65,536.
        maximum_frame_bytes: u64,
        /// Required.
        send: trireme_transport_send,
        /// Required.
        receive: trireme_transport_receive,
        /// NULL if nobody needs to know.
        released: trireme_transport_released,
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
    /// The axes of a mesh. Start from TRIREME_MESH_OPTIONS_INIT.
    trireme_mesh_options {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// Must be 0.
        flags: u32,
        /// Numbers and names below; 1 to TRIREME_MAX_AXES.
        axis_count: u32,
        /// How ranks are numbered. Default: by name.
        order: trireme_mesh_order,
        /// Any names, each once; UTF-8, at most 31 bytes; required.
        axis_names: *const *const c_char,
        /// Ranks along each axis; one of them may be 0: what is left. Required.
        axis_sizes: *const i32,
        /// Longest the creation may wait. Default: the communicator's timeout.
        timeout_ns: u64,
    }
    /// Start from TRIREME_STORE_OPTIONS_INIT. In every field 0 means the default.
    trireme_store_options {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// Must be 0.
        flags: u32,
        /// Longest any call may take to be answered. Default: 300 s.
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
        /// TRIREME_PRIORITY_NORMAL or TRIREME_PRIORITY_HIGH.
        priority: trireme_priority,
        /// TRIREME_ALGORITHM_AUTOMATIC and so on.
        algorithm: trireme_algorithm,
        /// What f32 elements are rounded to before they travel, or 0.
        wire_dtype: trireme_dtype,
        /// Must be 0.
        reserved: u32,
    }
    /// What a receive or a probe has met. Set struct_size before the call.
    trireme_message_info {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// Rank that sent it.
        source: i32,
        /// Tag it was sent with.
        tag: u64,
        /// Elements.
        count: u64,
        /// Their type.
        dtype: trireme_dtype,
        /// 0.
        reserved: u32,
    }
    /// A stretch of one parameter inside a bucket.
    trireme_bucket_part {
        /// Number of the parameter.
        parameter: u64,
        /// Which of its elements comes first.
        first: u64,
        /// Elements; 1 or more.
        count: u64,
        /// Where it begins in `data`, in elements.
        position: u64,
    }
    /// One bucket of gradients, for a bucket hook.
    trireme_bucket {
        /// sizeof this struct as the library knows it.
        struct_size: u32,
        /// TRIREME_HOOK_BEFORE or TRIREME_HOOK_AFTER.
        phase: i32,
        /// Number of the bucket, from 0 in the first step's order of reduction.
        bucket: u64,
        /// Elements at `data`.
        elements: u64,
        /// May be changed, until the hook returns.
        data: *mut c_void,
        /// `part_count` stretches, in the order of `data`.
        parts: *const trireme_bucket_part,
        /// Number of parts.
        part_count: u64,
        /// Type of the elements.
        dtype: trireme_dtype,
        /// BEFORE: which pass of the step, from 0. AFTER: 0.
        pass: u32,
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
        /// Neighbouring units are gathered together until they have this much. Default: 1 MiB; 1
        /// joins none.
        minimum_unit_bytes: u64,
        /// zero3, hybrid_shard: units below this stay whole on every rank and need no gather.
        /// Default: none.
        persistent_unit_bytes: u64,
        /// As bucket_bytes, for the bucket that backward fills first. Default: 1 MiB, or
        /// bucket_bytes if that is less.
        first_bucket_bytes: u64,
        /// hybrid_shard: must divide the world size. 0 for the other strategies.
        shard_ranks: u32,
        /// `TRIREME_UNUSED_*`.
        unused: i32,
        /// 0 or a sum of `TRIREME_MODEL_*`.
        flags: u32,
        /// TRIREME_SHARE_*.
        share_parameters: i32,
        /// Called for each bucket. NULL: none. All ranks have one or none has.
        bucket_hook: trireme_bucket_callback,
        /// Handed to bucket_hook.
        hook_data: *mut c_void,
        /// Most that any rank may plan to hold. Default: no limit.
        memory_limit_bytes: u64,
        /// hybrid_shard: the ranks of a copy are this far apart. 0: 1, neighbours.
        shard_stride: u32,
        /// zero3, hybrid_shard: how many neighbours spread a gathered unit between them until the
        /// parameters change, and gather it again from each other. 0: all.
        reshard_ranks: u32,
        /// As which gradients travel: f16 or bf16. 0: as they are.
        reduce_dtype: trireme_dtype,
        /// Must be 0.
        reserved: u32,
        /// zero3, hybrid_shard: a directory of a file with what this rank holds of the parameters;
        /// NULL: they stay in memory.
        offload_path: *const c_char,
        /// Which part of their bytes lies there, in (0, 1]. Default: 1.
        offload_ratio: f64,
        /// Most memory for what is on its way, at least 32,768. Default: 8 MiB.
        offload_buffer_bytes: u64,
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
        /// How many models hold this same parameter. Default: 1.
        replicas: u32,
        /// Number of the group that it is clipped with. Default: 0.
        norm_group: u32,
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
        /// Groups in which units are gathered, persistent ones included.
        groups: u64,
        /// Size of the copy of the parameters that ranks keep between them in shared memory; 0:
        /// every rank has its own memory.
        shared_bytes: u64,
    }
    /// What one unit looks like on this rank. Set struct_size before the call.
    trireme_unit_info {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// Type of its elements.
        dtype: trireme_dtype,
        /// Elements of the whole unit.
        elements: u64,
        /// First element of the unit that this rank owns.
        shard_first: u64,
        /// Elements of the unit that this rank owns; the group's shard may lie in other units.
        shard_count: u64,
        /// Where the unit begins in the flat vectors.
        flat_first: u64,
        /// Number of the group it is gathered with, from 0.
        group: u64,
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
    /// What the model's calls have done on this rank since it was sealed. Set struct_size before
    /// the call.
    trireme_model_statistics {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// 0.
        reserved: u32,
        /// Optimizer steps, those that join() shadowed included.
        steps: u64,
        /// Groups that were gathered from their owners.
        gathers: u64,
        /// Those of them that began before they were asked for.
        prefetched: u64,
        /// Buckets that were reduced, once for each pass.
        reductions: u64,
        /// Most groups that were whole in flight at one time.
        peak_groups: u64,
        /// Time in which calls of this model waited for operations: communication that compute did
        /// not hide.
        exposed_ns: u64,
        /// How often a bucket took memory beyond the plan.
        extra_buckets: u64,
        /// Buckets that are reduced at another place than in the first step.
        moved_buckets: u64,
        /// Those of `gathers` that came from reshard_ranks only.
        reshard_gathers: u64,
    }
    /// One piece of the model for a caller's own update rule: the trainable part of one parameter
    /// that this rank owns.
    trireme_update {
        /// sizeof this struct as the library knows it.
        struct_size: u32,
        /// Type of `parameters`.
        dtype: trireme_dtype,
        /// Number of the parameter.
        parameter: u64,
        /// Which of its elements comes first here.
        first: u64,
        /// Elements; 1 or more.
        count: u64,
        /// Number of this step, from 1.
        step: u64,
        /// Of this step, by the schedule and for the parameter's group.
        learning_rate: f64,
        /// `count` elements, to be updated.
        parameters: *mut c_void,
        /// `count` elements, reduced and clipped.
        gradients: *const c_void,
        /// `count` elements each, 0 before the first step; NULL past state_count.
        states: [*mut c_void; TRIREME_MAX_STATES],
        /// Type of `gradients` and `states`: f32 where `dtype` is f16 or bf16, else `dtype`.
        gradient_dtype: trireme_dtype,
        /// 0.
        reserved: u32,
    }
    /// Start from TRIREME_OPTIMIZER_OPTIONS_INIT. In every field 0 or NULL means the default.
    trireme_optimizer_options {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// Required.
        kind: trireme_optimizer_kind,
        /// A sum of TRIREME_OPTIMIZER_NESTEROV, ONE_SWEEP, CENTERED, MASTER_WEIGHTS and STOCHASTIC_ROUNDING, or 0.
        flags: u32,
        /// USER: state vectors, at most TRIREME_MAX_STATES; 0 for the other kinds.
        state_count: u32,
        /// Default: 0.001; ADAFACTOR: 0.01.
        learning_rate: f64,
        /// SGD, RMSPROP, LARS; 0 is none. MUON: 0.95 by default. In [0, 1).
        momentum: f64,
        /// ADAM, ADAMW, LION, LAMB, MUON. Default: 0.9. In (0, 1).
        beta1: f64,
        /// ADAM, ADAMW, LAMB, MUON: 0.999 by default; RMSPROP (alpha), LION: 0.99. In (0, 1).
        beta2: f64,
        /// ADAM, ADAMW, RMSPROP, MUON: 1e-8 by default; ADAGRAD: 1e-10; LAMB: 1e-6; LARS: 0;
        /// ADAFACTOR: 2^-52 for parameters of f64, else 2^-23.
        epsilon: f64,
        /// 0 is none.
        weight_decay: f64,
        /// The global L2 norm of all gradients is clipped to this; 0 is no clipping.
        max_norm: f64,
        /// USER: the rule. NULL for the other kinds.
        update: trireme_update_callback,
        /// Handed to `update`.
        user_data: *mut c_void,
        /// Each reduced gradient is clipped to [-max_value, max_value], before max_norm sees it; 0
        /// is no clipping.
        max_value: f64,
        /// After every so many steps, trireme_model_check_replicas() is part of the step; 0 is
        /// never.
        check_every: u64,
        /// max_norm is for all gradients of these ranks. NULL: the model's own ranks.
        norm_ranks: *mut trireme_communicator,
        /// Group by group of parameters, the L2 norm of its gradients is clipped to this; 0 is no
        /// clipping. Copied. Instead of max_norm. NULL: no clipping by groups.
        group_max_norms: *const f64,
        /// Numbers at each list of groups that is not NULL.
        group_count: u64,
        /// The learning rate of a group is learning_rate times this. Copied. NULL: all 1.
        group_rate_factors: *const f64,
        /// weight_decay of each group, instead of weight_decay. Copied. NULL: weight_decay.
        group_weight_decays: *const f64,
        /// The first loss scale: a power of two. 0: losses are not scaled.
        loss_scale: f64,
        /// By which it grows. Default: 2.
        loss_scale_growth: f64,
        /// By which it is multiplied after an overflow. Default: 0.5.
        loss_scale_backoff: f64,
        /// It is never smaller. Default: 1, or loss_scale if that is less.
        loss_scale_floor: f64,
        /// It grows after so many steps without an overflow. Default: 2000.
        loss_scale_window: u64,
        /// It backs off at this overflow since it last grew. Default: 1.
        loss_scale_hysteresis: u64,
        /// LARS. Default: 0.001.
        trust_coefficient: f64,
        /// LAMB, LARS: the trust ratio is at most this; 0 is no limit.
        max_trust: f64,
        /// A directory: state of the rule lies in a file in it. Copied. NULL: none.
        offload_path: *const c_char,
        /// Which part of the state's bytes lies in the file, in (0, 1]. Default: 1.
        offload_ratio: f64,
        /// Most memory for what is on its way. Default: 8 MiB.
        offload_buffer_bytes: u64,
        /// With TRIREME_OPTIMIZER_STOCHASTIC_ROUNDING: other numbers, other draws.
        rounding_seed: u64,
        /// ADAFACTOR: the mean of squares moves by t^beta2_decay. Default: -0.8.
        beta2_decay: f64,
        /// ADAFACTOR: the root mean square of an update is clipped to this. Default: 1.
        max_update_rms: f64,
        /// ADAFACTOR: that of a parameter counts as this at least. Default: 0.001.
        min_parameter_rms: f64,
        /// MUON: of each group, a sum of TRIREME_GROUP_*, or 0. Copied. NULL: all 0.
        group_flags: *const u32,
        /// MUON: Newton-Schulz steps, at most 99. Default: 5.
        orthogonal_steps: u32,
        /// MUON: TRIREME_RATE_*.
        rate_adjustment: trireme_rate_adjustment,
    }
    /// The loss scale, and how the last step went with it. Set struct_size before the call.
    trireme_loss_scale_info {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// 1: the last step was skipped; else 0.
        skipped: i32,
        /// What the next loss is multiplied by.
        scale: f64,
        /// Steps since the scale grew or one was skipped.
        clean_steps: u64,
        /// Skipped steps since the scale grew.
        overflows: u64,
        /// Skipped steps in all.
        skipped_steps: u64,
        /// The lowest parameter that overflowed in the last step; u64::MAX: none of this model.
        parameter: u64,
        /// The lowest rank that handed in an inf or NaN for it; -1: none did.
        rank: i32,
        /// 1: the scale would have backed off, but is at its floor.
        at_floor: i32,
    }
    /// Start from TRIREME_SCHEDULE_OPTIONS_INIT. In every field 0 or NULL means the default; a field
    /// that the kind does not know stays 0.
    trireme_schedule_options {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// Required.
        kind: trireme_schedule_kind,
        /// A sum of TRIREME_SCHEDULE_FROM_ZERO and LINEAR_ANNEALING, or 0.
        flags: u32,
        /// Must be 0.
        reserved: u32,
        /// LINEAR, COSINE, ONE_CYCLE: steps until the end; 1 or more.
        total_steps: u64,
        /// CONSTANT, LINEAR, COSINE: the first steps, in which the factor rises to 1.
        warm_up_steps: u64,
        /// With warm_up_steps: the factor of step 0, in (0, 1]. Default: 1 / warm_up_steps.
        warm_up_factor: f64,
        /// LINEAR, COSINE: the factor at the end, in [0, 1].
        end_factor: f64,
        /// ONE_CYCLE: the part of total_steps in which the factor rises. Default: 0.3.
        pct_start: f64,
        /// ONE_CYCLE: the peak divided by the first factor. Default: 25.
        div_factor: f64,
        /// ONE_CYCLE: the first factor divided by the last. Default: 1e4.
        final_div_factor: f64,
        /// USER: the schedule. NULL for the other kinds.
        factor: trireme_schedule_callback,
        /// Handed to `factor`.
        user_data: *mut c_void,
    }
    /// State of an optimizer that lies in a file, of this rank. Set struct_size before the call.
    trireme_offload_info {
        /// sizeof this struct as the caller knows it.
        struct_size: u32,
        /// 1: past the system's cache (O_DIRECT).
        direct: i32,
        /// 1: by io_uring; 0: by threads.
        ring: i32,
        /// errno of the last write that failed; 0 if none did.
        failed_errno: i32,
        /// The directory; lives as long as the optimizer, as the next two do.
        path: *const c_char,
        /// What refused O_DIRECT; "" if it is in use.
        why_not_direct: *const c_char,
        /// What refused io_uring; "" if it is in use.
        why_not_ring: *const c_char,
        /// State that lies in the file.
        file_bytes: u64,
        /// State that stays in memory.
        resident_bytes: u64,
        /// Memory for what is on its way.
        buffer_bytes: u64,
        /// The largest piece that is read or written at once.
        block_bytes: u64,
        /// Asked of the file so far.
        read_bytes: u64,
        /// Given to the file so far.
        written_bytes: u64,
        /// That calls waited for the disk, so far.
        waited_seconds: f64,
        /// Blocks that could not be written; if they fit, they stay in memory.
        failed_writes: u64,
        /// Where in the file the last one of them failed.
        failed_offset: u64,
    }
}

macro_rules! inits {
    ($($name:ident)*) => {$(
        impl $name {
            /// What the `_INIT` macro of the header gives: the size is set, all else is 0.
            pub const fn init() -> Self {
                // SAFETY: numbers, arrays of numbers, pointers and optional functions; all of them
                // may be 0.
                let zeros = [0_u8; core::mem::size_of::<Self>()];
                let mut value: Self = unsafe { core::mem::transmute(zeros) };
                value.struct_size = core::mem::size_of::<Self>() as u32;
                value
            }
        }
    )*};
}

inits! {
    trireme_capability_query
    trireme_error_info
    trireme_transport
    trireme_communicator_options
    trireme_group_options
    trireme_mesh_options
    trireme_store_options
    trireme_communicator_statistics
    trireme_operation_options
    trireme_message_info
    trireme_model_options
    trireme_parameter_options
    trireme_model_info
    trireme_unit_info
    trireme_model_memory
    trireme_model_statistics
    trireme_schedule_options
    trireme_optimizer_options
    trireme_loss_scale_info
    trireme_optimizer_counters
    trireme_offload_info
    trireme_state_range
}

mod functions_trainer;
#[doc(hidden)]
pub use functions_trainer::layout as trainer_layout;
pub use functions_trainer::*;

mod functions_training;
#[doc(hidden)]
pub use functions_training::layout as training_layout;
pub use functions_training::*;
