"""The training part of the C ABI: model_shard.h and optimizer_shard.h. A part of _native.py."""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_int32,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

# ---- model_shard.h -------------------------------------------------------------------------

TRIREME_STRATEGY_DATA_PARALLEL = 1
TRIREME_STRATEGY_ZERO1 = 2
TRIREME_STRATEGY_ZERO2 = 3
TRIREME_STRATEGY_ZERO3 = 4
TRIREME_STRATEGY_HYBRID_SHARD = 5

TRIREME_GRADIENTS_AVERAGE = 0
TRIREME_GRADIENTS_SUM = 1

TRIREME_UNUSED_ERROR = 0
TRIREME_UNUSED_ZERO = 1
TRIREME_UNUSED_SKIP = 2

TRIREME_SHARE_AUTO = 0
TRIREME_SHARE_ALWAYS = 1
TRIREME_SHARE_NEVER = 2

TRIREME_MODEL_UNEVEN = 1
TRIREME_MODEL_FIXED_ORDER = 2
TRIREME_MODEL_WHOLE_ROWS = 4
TRIREME_MODEL_KEEP_GATHERED = 8
TRIREME_MODEL_UPDATE_IN_BACKWARD = 16

TRIREME_HOOK_BEFORE = 1
TRIREME_HOOK_AFTER = 2

TRIREME_PARAMETER_FROZEN = 1

TRIREME_BACKWARD_ABSENT = 2
TRIREME_BACKWARD_NO_SYNC = 1


class trireme_bucket_part(Structure):
    _fields_ = [
        ("parameter", c_uint64),
        ("first", c_uint64),
        ("count", c_uint64),
        ("position", c_uint64),
    ]


class trireme_bucket(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("phase", c_int32),
        ("bucket", c_uint64),
        ("elements", c_uint64),
        ("data", c_void_p),
        ("parts", POINTER(trireme_bucket_part)),
        ("part_count", c_uint64),
        ("dtype", c_int32),
        ("pass", c_uint32),
    ]


trireme_bucket_callback = CFUNCTYPE(c_int32, POINTER(trireme_bucket), c_void_p)


class trireme_model_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("strategy", c_int32),
        ("gradients", c_int32),
        ("leaves", c_uint32),
        ("bucket_bytes", c_uint64),
        ("prefetch_bytes", c_uint64),
        ("timeout_ns", c_uint64),
        ("minimum_unit_bytes", c_uint64),
        ("persistent_unit_bytes", c_uint64),
        ("first_bucket_bytes", c_uint64),
        ("shard_ranks", c_uint32),
        ("unused", c_int32),
        ("flags", c_uint32),
        ("share_parameters", c_int32),
        ("bucket_hook", trireme_bucket_callback),
        ("hook_data", c_void_p),
        ("memory_limit_bytes", c_uint64),
        ("shard_stride", c_uint32),
        ("reshard_ranks", c_uint32),
        ("reduce_dtype", c_int32),
        ("reserved", c_uint32),
        ("offload_path", c_char_p),
        ("offload_ratio", c_double),
        ("offload_buffer_bytes", c_uint64),
    ]


class trireme_parameter_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("dtype", c_int32),
        ("dimensions", c_uint32),
        ("shape", POINTER(c_uint64)),
        ("name", c_char_p),
        ("unit", c_char_p),
        ("tied_to", c_char_p),
        ("replicas", c_uint32),
        ("norm_group", c_uint32),
    ]


class trireme_model_info(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("strategy", c_int32),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("leaves", c_uint32),
        ("micro_batches", c_uint32),
        ("parameters", c_uint64),
        ("units", c_uint64),
        ("elements", c_uint64),
        ("buckets", c_uint64),
        ("groups", c_uint64),
        ("shared_bytes", c_uint64),
    ]


class trireme_unit_info(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dtype", c_int32),
        ("elements", c_uint64),
        ("shard_first", c_uint64),
        ("shard_count", c_uint64),
        ("flat_first", c_uint64),
        ("group", c_uint64),
    ]


class trireme_model_memory(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("planned_parameters", c_uint64),
        ("planned_gradients", c_uint64),
        ("planned_optimizer_state", c_uint64),
        ("planned_working", c_uint64),
        ("allocated_parameters", c_uint64),
        ("allocated_gradients", c_uint64),
        ("allocated_optimizer_state", c_uint64),
        ("allocated_working", c_uint64),
        ("planned_step_bytes", c_uint64),
        ("sent_step_bytes", c_uint64),
    ]


class trireme_model_statistics(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("steps", c_uint64),
        ("gathers", c_uint64),
        ("prefetched", c_uint64),
        ("reductions", c_uint64),
        ("peak_groups", c_uint64),
        ("exposed_ns", c_uint64),
        ("extra_buckets", c_uint64),
        ("moved_buckets", c_uint64),
        ("reshard_gathers", c_uint64),
    ]


# ---- schedule.h ----------------------------------------------------------------------------

TRIREME_SCHEDULE_CONSTANT = 1
TRIREME_SCHEDULE_LINEAR = 2
TRIREME_SCHEDULE_COSINE = 3
TRIREME_SCHEDULE_ONE_CYCLE = 4
TRIREME_SCHEDULE_USER = 5

TRIREME_SCHEDULE_FROM_ZERO = 1
TRIREME_SCHEDULE_LINEAR_ANNEALING = 2

trireme_schedule_callback = CFUNCTYPE(c_double, c_uint64, c_void_p)


class trireme_schedule_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_int32),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("total_steps", c_uint64),
        ("warm_up_steps", c_uint64),
        ("warm_up_factor", c_double),
        ("end_factor", c_double),
        ("pct_start", c_double),
        ("div_factor", c_double),
        ("final_div_factor", c_double),
        ("factor", trireme_schedule_callback),
        ("user_data", c_void_p),
    ]


# ---- optimizer_shard.h ---------------------------------------------------------------------

TRIREME_OPTIMIZER_SGD = 1
TRIREME_OPTIMIZER_ADAM = 2
TRIREME_OPTIMIZER_ADAMW = 3
TRIREME_OPTIMIZER_USER = 4
TRIREME_OPTIMIZER_ADAGRAD = 5
TRIREME_OPTIMIZER_RMSPROP = 6
TRIREME_OPTIMIZER_LION = 7
TRIREME_OPTIMIZER_LAMB = 8
TRIREME_OPTIMIZER_LARS = 9
TRIREME_OPTIMIZER_ADAFACTOR = 10
TRIREME_OPTIMIZER_MUON = 11

TRIREME_OPTIMIZER_NESTEROV = 1
TRIREME_OPTIMIZER_ONE_SWEEP = 2
TRIREME_OPTIMIZER_CENTERED = 4
TRIREME_OPTIMIZER_MASTER_WEIGHTS = 8
TRIREME_OPTIMIZER_STOCHASTIC_ROUNDING = 16

TRIREME_GROUP_ELEMENTWISE = 1

TRIREME_RATE_ORIGINAL = 0
TRIREME_RATE_MATCH_ADAMW = 1

TRIREME_STATE_PARAMETER = 1
TRIREME_STATE_OPTIMIZER = 2
TRIREME_STATE_ROWS = 3
TRIREME_STATE_COLUMNS = 4

TRIREME_MAX_STATES = 8
TRIREME_OPTIMIZER_COUNTERS_VERSION = 1


class trireme_update(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dtype", c_int32),
        ("parameter", c_uint64),
        ("first", c_uint64),
        ("count", c_uint64),
        ("step", c_uint64),
        ("learning_rate", c_double),
        ("parameters", c_void_p),
        ("gradients", c_void_p),
        ("states", c_void_p * TRIREME_MAX_STATES),
        ("gradient_dtype", c_int32),
        ("reserved", c_uint32),
    ]


trireme_update_callback = CFUNCTYPE(c_int32, POINTER(trireme_update), c_void_p)


class trireme_optimizer_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_int32),
        ("flags", c_uint32),
        ("state_count", c_uint32),
        ("learning_rate", c_double),
        ("momentum", c_double),
        ("beta1", c_double),
        ("beta2", c_double),
        ("epsilon", c_double),
        ("weight_decay", c_double),
        ("max_norm", c_double),
        ("update", trireme_update_callback),
        ("user_data", c_void_p),
        ("max_value", c_double),
        ("check_every", c_uint64),
        ("norm_ranks", c_void_p),
        ("group_max_norms", POINTER(c_double)),
        ("group_count", c_uint64),
        ("group_rate_factors", POINTER(c_double)),
        ("group_weight_decays", POINTER(c_double)),
        ("loss_scale", c_double),
        ("loss_scale_growth", c_double),
        ("loss_scale_backoff", c_double),
        ("loss_scale_floor", c_double),
        ("loss_scale_window", c_uint64),
        ("loss_scale_hysteresis", c_uint64),
        ("trust_coefficient", c_double),
        ("max_trust", c_double),
        ("offload_path", c_char_p),
        ("offload_ratio", c_double),
        ("offload_buffer_bytes", c_uint64),
        ("rounding_seed", c_uint64),
        ("beta2_decay", c_double),
        ("max_update_rms", c_double),
        ("min_parameter_rms", c_double),
        ("group_flags", POINTER(c_uint32)),
        ("orthogonal_steps", c_uint32),
        ("rate_adjustment", c_int32),
    ]


class trireme_loss_scale_info(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("skipped", c_int32),
        ("scale", c_double),
        ("clean_steps", c_uint64),
        ("overflows", c_uint64),
        ("skipped_steps", c_uint64),
        ("parameter", c_uint64),
        ("rank", c_int32),
        ("at_floor", c_int32),
    ]


class trireme_optimizer_counters(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("version", c_uint32),
        ("steps", c_uint64),
        ("learning_rate", c_double),
        ("loss_scale", c_double),
        ("clean_steps", c_uint64),
        ("overflows", c_uint64),
        ("skipped_steps", c_uint64),
        ("parameter_steps", POINTER(c_uint64)),
        ("parameter_count", c_uint64),
        ("group_rate_factors", POINTER(c_double)),
        ("group_count", c_uint64),
    ]


class trireme_offload_info(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("direct", c_int32),
        ("ring", c_int32),
        ("failed_errno", c_int32),
        ("path", c_char_p),
        ("why_not_direct", c_char_p),
        ("why_not_ring", c_char_p),
        ("file_bytes", c_uint64),
        ("resident_bytes", c_uint64),
        ("buffer_bytes", c_uint64),
        ("block_bytes", c_uint64),
        ("read_bytes", c_uint64),
        ("written_bytes", c_uint64),
        ("waited_seconds", c_double),
        ("failed_writes", c_uint64),
        ("failed_offset", c_uint64),
    ]


class trireme_state_range(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_int32),
        ("dtype", c_int32),
        ("vector", c_uint32),
        ("parameter", c_uint64),
        ("name", c_char_p),
        ("shape", POINTER(c_uint64)),
        ("dimensions", c_uint32),
        ("reserved", c_uint32),
        ("first", c_uint64),
        ("count", c_uint64),
        ("data", c_void_p),
    ]


# ---- prototypes ----------------------------------------------------------------------------

_status = c_int32
_handle = c_void_p
_memory = c_void_p
_out_handle = POINTER(c_void_p)

# As PROTOTYPES of _native.py.
TRAINING: dict[str, tuple[Any, list[Any]]] = {
    "trireme_strategy_name": (c_char_p, [c_int32]),
    "trireme_strategy_parse": (_status, [c_char_p, POINTER(c_int32)]),
    "trireme_model_create": (_status, [_handle, POINTER(trireme_model_options), _out_handle]),
    "trireme_model_destroy": (None, [_handle]),
    "trireme_model_add_parameter": (
        _status,
        [_handle, POINTER(trireme_parameter_options), POINTER(c_uint64)],
    ),
    "trireme_model_seal": (_status, [_handle]),
    "trireme_model_get_info": (_status, [_handle, POINTER(trireme_model_info)]),
    "trireme_model_get_unit_info": (_status, [_handle, c_uint64, POINTER(trireme_unit_info)]),
    "trireme_model_get_memory": (_status, [_handle, POINTER(trireme_model_memory)]),
    "trireme_model_get_offload_info": (_status, [_handle, POINTER(trireme_offload_info)]),
    "trireme_model_get_statistics": (_status, [_handle, POINTER(trireme_model_statistics)]),
    "trireme_model_check_replicas": (_status, [_handle]),
    "trireme_model_set_parameters": (_status, [_handle, _memory, c_uint64, c_int32, c_int32]),
    "trireme_model_get_parameters": (_status, [_handle, _memory, c_uint64, c_int32]),
    "trireme_model_gather_unit": (_status, [_handle, c_uint64]),
    "trireme_model_release_unit": (_status, [_handle, c_uint64]),
    "trireme_model_parameter_data": (
        _status,
        [_handle, c_uint64, POINTER(c_void_p), POINTER(c_uint64)],
    ),
    "trireme_model_leaf": (_status, [_handle, c_uint32, POINTER(c_uint32)]),
    "trireme_model_begin_backward": (_status, [_handle, c_uint32]),
    "trireme_model_gradient_data": (
        _status,
        [
            _handle,
            c_uint64,
            POINTER(c_void_p),
            POINTER(c_uint64),
            POINTER(c_int32),
            POINTER(c_int32),
        ],
    ),
    "trireme_model_gradient_ready": (_status, [_handle, c_uint64, _memory, c_uint64, c_int32]),
    "trireme_model_end_backward": (_status, [_handle]),
    "trireme_model_accumulate_flat": (_status, [_handle, _memory, c_uint64, c_int32, c_uint32]),
    "trireme_model_discard_gradients": (_status, [_handle]),
    "trireme_schedule_value": (
        _status,
        [POINTER(trireme_schedule_options), c_uint64, POINTER(c_double)],
    ),
    "trireme_optimizer_kind_name": (c_char_p, [c_int32]),
    "trireme_optimizer_create": (
        _status,
        [_handle, POINTER(trireme_optimizer_options), _out_handle],
    ),
    "trireme_optimizer_destroy": (None, [_handle]),
    "trireme_optimizer_step": (_status, [_handle]),
    "trireme_optimizer_join": (_status, [_handle, POINTER(c_uint64)]),
    "trireme_optimizer_set_learning_rate": (_status, [_handle, c_double]),
    "trireme_optimizer_set_group_rate_factor": (_status, [_handle, c_uint64, c_double]),
    "trireme_optimizer_set_schedule": (_status, [_handle, POINTER(trireme_schedule_options)]),
    "trireme_optimizer_step_rate": (_status, [_handle, POINTER(c_double)]),
    "trireme_optimizer_learning_rate": (_status, [_handle, POINTER(c_double)]),
    "trireme_optimizer_step_count": (_status, [_handle, POINTER(c_uint64)]),
    "trireme_optimizer_gradient_norm": (_status, [_handle, POINTER(c_double)]),
    "trireme_optimizer_group_norm": (_status, [_handle, c_uint64, POINTER(c_double)]),
    "trireme_optimizer_loss_scale": (_status, [_handle, POINTER(c_double)]),
    "trireme_optimizer_get_loss_scale_info": (
        _status,
        [_handle, POINTER(trireme_loss_scale_info)],
    ),
    "trireme_optimizer_get_counters": (_status, [_handle, POINTER(trireme_optimizer_counters)]),
    "trireme_optimizer_restore": (_status, [_handle, POINTER(trireme_optimizer_counters)]),
    "trireme_optimizer_range_count": (_status, [_handle, POINTER(c_uint64)]),
    "trireme_optimizer_get_range": (_status, [_handle, c_uint64, POINTER(trireme_state_range)]),
    "trireme_optimizer_read_range": (_status, [_handle, c_uint64, _memory, c_uint64]),
    "trireme_optimizer_write_range": (_status, [_handle, c_uint64, _memory, c_uint64]),
    "trireme_optimizer_get_offload_info": (_status, [_handle, POINTER(trireme_offload_info)]),
    "trireme_optimizer_saved_bytes": (_status, [_handle, POINTER(c_uint64)]),
    "trireme_optimizer_save": (_status, [_handle, _memory, c_uint64, POINTER(c_uint64)]),
    "trireme_optimizer_load": (_status, [_handle, _memory, c_uint64]),
}
