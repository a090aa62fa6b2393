//! The numbers of the ABI, by header.

use super::*;

macro_rules! constants {
    ($($name:ident: $kind:ty = $value:expr;)*) => {
        $(pub const $name: $kind = $value;)*
        /// Every constant by name, for the comparison with the released ones.
        #[doc(hidden)]
        pub const CONSTANTS: &[(&str, i64)] = &[$((stringify!($name), $name as i64)),*];
    };
}

constants! {
    // version.h
    TRIREME_VERSION_MAJOR: u32 = 1;
    TRIREME_VERSION_MINOR: u32 = 0;
    TRIREME_VERSION_PATCH: u32 = 0;
    TRIREME_VERSION: u32 = 1000000;
    TRIREME_OPERATION_ALL_REDUCE: trireme_operation = 1;
    TRIREME_OPERATION_REDUCE_SCATTER: trireme_operation = 2;
    TRIREME_OPERATION_REDUCE_SCATTER_V: trireme_operation = 3;
    TRIREME_OPERATION_ALL_GATHER: trireme_operation = 4;
    TRIREME_OPERATION_ALL_GATHER_V: trireme_operation = 5;
    TRIREME_OPERATION_BROADCAST: trireme_operation = 6;
    TRIREME_OPERATION_BARRIER: trireme_operation = 7;
    TRIREME_OPERATION_SEND: trireme_operation = 8;
    TRIREME_OPERATION_RECEIVE: trireme_operation = 9;
    TRIREME_OPERATION_REDUCE: trireme_operation = 10;
    TRIREME_OPERATION_GATHER: trireme_operation = 11;
    TRIREME_OPERATION_GATHER_V: trireme_operation = 12;
    TRIREME_OPERATION_SCATTER: trireme_operation = 13;
    TRIREME_OPERATION_SCATTER_V: trireme_operation = 14;
    TRIREME_OPERATION_ALL_TO_ALL: trireme_operation = 15;
    TRIREME_OPERATION_ALL_TO_ALL_V: trireme_operation = 16;
    TRIREME_OPERATION_PROBE: trireme_operation = 17;
    // collectives.h
    TRIREME_CALL_REPRODUCIBLE: u32 = 1;
    TRIREME_CALL_BUFFERED: u32 = 2;
    TRIREME_CALL_ANY_TAG: u32 = 4;
    TRIREME_ALGORITHM_AUTOMATIC: trireme_algorithm = 0;
    TRIREME_ALGORITHM_DIRECT: trireme_algorithm = 1;
    TRIREME_ALGORITHM_RING: trireme_algorithm = 2;
    TRIREME_ALGORITHM_HALVING_DOUBLING: trireme_algorithm = 3;
    TRIREME_ALGORITHM_BINOMIAL: trireme_algorithm = 4;
    TRIREME_ALGORITHM_DOUBLE_TREE: trireme_algorithm = 5;
    TRIREME_ALGORITHM_BRUCK: trireme_algorithm = 6;
    TRIREME_ALGORITHM_PAIRWISE: trireme_algorithm = 7;
    TRIREME_ALGORITHM_NATIVE: trireme_algorithm = 8;
    TRIREME_PRIORITY_NORMAL: trireme_priority = 0;
    TRIREME_PRIORITY_HIGH: trireme_priority = 1;
    // types.h
    TRIREME_DTYPE_I8: trireme_dtype = 1;
    TRIREME_DTYPE_U8: trireme_dtype = 2;
    TRIREME_DTYPE_I16: trireme_dtype = 3;
    TRIREME_DTYPE_U16: trireme_dtype = 4;
    TRIREME_DTYPE_I32: trireme_dtype = 5;
    TRIREME_DTYPE_U32: trireme_dtype = 6;
    TRIREME_DTYPE_I64: trireme_dtype = 7;
    TRIREME_DTYPE_U64: trireme_dtype = 8;
    TRIREME_DTYPE_F16: trireme_dtype = 9;
    TRIREME_DTYPE_BF16: trireme_dtype = 10;
    TRIREME_DTYPE_F32: trireme_dtype = 11;
    TRIREME_DTYPE_F64: trireme_dtype = 12;
    TRIREME_DTYPE_F8E4M3: trireme_dtype = 13;
    TRIREME_DTYPE_F8E5M2: trireme_dtype = 14;
    TRIREME_DTYPE_BOOL: trireme_dtype = 15;
    TRIREME_DTYPE_BYTES: trireme_dtype = 16;
    TRIREME_SUM: trireme_reduction = 1;
    TRIREME_AVERAGE: trireme_reduction = 2;
    TRIREME_PRODUCT: trireme_reduction = 3;
    TRIREME_MIN: trireme_reduction = 4;
    TRIREME_MAX: trireme_reduction = 5;
    TRIREME_BAND: trireme_reduction = 6;
    TRIREME_BOR: trireme_reduction = 7;
    TRIREME_BXOR: trireme_reduction = 8;
    TRIREME_SCALED_SUM: trireme_reduction = 9;
    TRIREME_DEVICE_DEFAULT: trireme_device_kind = 0;
    TRIREME_DEVICE_HOST: trireme_device_kind = 1;
    TRIREME_DEVICE_CUDA: trireme_device_kind = 2;
    // status.h
    TRIREME_OK: trireme_status = 0;
    TRIREME_ERROR_INVALID_ARGUMENT: trireme_status = -1;
    TRIREME_ERROR_INVALID_HANDLE: trireme_status = -2;
    TRIREME_ERROR_INVALID_STATE: trireme_status = -3;
    TRIREME_ERROR_UNSUPPORTED: trireme_status = -4;
    TRIREME_ERROR_OUT_OF_MEMORY: trireme_status = -5;
    TRIREME_ERROR_TIMEOUT: trireme_status = -6;
    TRIREME_ERROR_ABORTED: trireme_status = -7;
    TRIREME_ERROR_PEER_LOST: trireme_status = -8;
    TRIREME_ERROR_MISMATCH: trireme_status = -9;
    TRIREME_ERROR_CORRUPT: trireme_status = -10;
    TRIREME_ERROR_AUTHENTICATION: trireme_status = -11;
    TRIREME_ERROR_SYSTEM: trireme_status = -12;
    TRIREME_ERROR_CALLBACK: trireme_status = -13;
    TRIREME_ERROR_CANCELLED: trireme_status = -14;
    TRIREME_ERROR_INTERNAL: trireme_status = -15;
    TRIREME_MAX_BLAMED_RANKS: usize = 16;
    // transport.h
    TRIREME_TRANSPORT_FRAME_BYTES_MIN: u64 = 1024;
    // log.h
    TRIREME_LOG_ERROR: trireme_log_level = 1;
    TRIREME_LOG_WARNING: trireme_log_level = 2;
    TRIREME_LOG_INFO: trireme_log_level = 3;
    TRIREME_LOG_DEBUG: trireme_log_level = 4;
    // messages.h
    TRIREME_ANY_SOURCE: i32 = -1;
    // model_shard.h
    TRIREME_STRATEGY_DATA_PARALLEL: trireme_strategy = 1;
    TRIREME_STRATEGY_ZERO1: trireme_strategy = 2;
    TRIREME_STRATEGY_ZERO2: trireme_strategy = 3;
    TRIREME_STRATEGY_ZERO3: trireme_strategy = 4;
    TRIREME_STRATEGY_HYBRID_SHARD: trireme_strategy = 5;
    TRIREME_GRADIENTS_AVERAGE: i32 = 0;
    TRIREME_GRADIENTS_SUM: i32 = 1;
    TRIREME_UNUSED_ERROR: i32 = 0;
    TRIREME_UNUSED_ZERO: i32 = 1;
    TRIREME_UNUSED_SKIP: i32 = 2;
    TRIREME_SHARE_AUTO: i32 = 0;
    TRIREME_SHARE_ALWAYS: i32 = 1;
    TRIREME_SHARE_NEVER: i32 = 2;
    TRIREME_MODEL_UNEVEN: u32 = 1;
    TRIREME_MODEL_FIXED_ORDER: u32 = 2;
    TRIREME_MODEL_WHOLE_ROWS: u32 = 4;
    TRIREME_MODEL_KEEP_GATHERED: u32 = 8;
    TRIREME_MODEL_UPDATE_IN_BACKWARD: u32 = 16;
    TRIREME_HOOK_BEFORE: i32 = 1;
    TRIREME_HOOK_AFTER: i32 = 2;
    TRIREME_PARAMETER_FROZEN: u32 = 1;
    TRIREME_BACKWARD_ABSENT: u32 = 2;
    TRIREME_BACKWARD_NO_SYNC: u32 = 1;
    // schedule.h
    TRIREME_SCHEDULE_CONSTANT: trireme_schedule_kind = 1;
    TRIREME_SCHEDULE_LINEAR: trireme_schedule_kind = 2;
    TRIREME_SCHEDULE_COSINE: trireme_schedule_kind = 3;
    TRIREME_SCHEDULE_ONE_CYCLE: trireme_schedule_kind = 4;
    TRIREME_SCHEDULE_USER: trireme_schedule_kind = 5;
    TRIREME_SCHEDULE_FROM_ZERO: u32 = 1;
    TRIREME_SCHEDULE_LINEAR_ANNEALING: u32 = 2;
    // optimizer_shard.h
    TRIREME_OPTIMIZER_SGD: trireme_optimizer_kind = 1;
    TRIREME_OPTIMIZER_ADAM: trireme_optimizer_kind = 2;
    TRIREME_OPTIMIZER_ADAMW: trireme_optimizer_kind = 3;
    TRIREME_OPTIMIZER_USER: trireme_optimizer_kind = 4;
    TRIREME_OPTIMIZER_ADAGRAD: trireme_optimizer_kind = 5;
    TRIREME_OPTIMIZER_RMSPROP: trireme_optimizer_kind = 6;
    TRIREME_OPTIMIZER_LION: trireme_optimizer_kind = 7;
    TRIREME_OPTIMIZER_LAMB: trireme_optimizer_kind = 8;
    TRIREME_OPTIMIZER_LARS: trireme_optimizer_kind = 9;
    TRIREME_OPTIMIZER_ADAFACTOR: trireme_optimizer_kind = 10;
    TRIREME_OPTIMIZER_MUON: trireme_optimizer_kind = 11;
    TRIREME_GROUP_ELEMENTWISE: u32 = 1;
    TRIREME_RATE_ORIGINAL: trireme_rate_adjustment = 0;
    TRIREME_RATE_MATCH_ADAMW: trireme_rate_adjustment = 1;
    TRIREME_OPTIMIZER_NESTEROV: u32 = 1;
    TRIREME_OPTIMIZER_ONE_SWEEP: u32 = 2;
    TRIREME_OPTIMIZER_CENTERED: u32 = 4;
    TRIREME_OPTIMIZER_MASTER_WEIGHTS: u32 = 8;
    TRIREME_OPTIMIZER_STOCHASTIC_ROUNDING: u32 = 16;
    TRIREME_STATE_PARAMETER: i32 = 1;
    TRIREME_STATE_OPTIMIZER: i32 = 2;
    TRIREME_STATE_ROWS: i32 = 3;
    TRIREME_STATE_COLUMNS: i32 = 4;
    TRIREME_MAX_STATES: usize = 8;
    TRIREME_OPTIMIZER_COUNTERS_VERSION: u32 = 1;
    // trainer.h
    TRIREME_PHASE_FORWARD: i32 = 1;
    TRIREME_PHASE_RECOMPUTE: i32 = 2;
    TRIREME_PHASE_BACKWARD: i32 = 3;
    TRIREME_PHASE_EVALUATE: i32 = 4;
    TRIREME_TRAINER_ZERO_GRADIENTS: u32 = 1;
    // mesh.h
    TRIREME_MAX_AXES: usize = 16;
    TRIREME_MESH_BY_NAME: trireme_mesh_order = 0;
    TRIREME_MESH_LAST_FASTEST: trireme_mesh_order = 1;
    TRIREME_MESH_FIRST_FASTEST: trireme_mesh_order = 2;
}
