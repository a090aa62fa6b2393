"""trainer.h. A part of _native.py."""

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

from ._native_training import trireme_offload_info

TRIREME_PHASE_FORWARD = 1
TRIREME_PHASE_RECOMPUTE = 2
TRIREME_PHASE_BACKWARD = 3
TRIREME_PHASE_EVALUATE = 4
TRIREME_TRAINER_ZERO_GRADIENTS = 1


class trireme_layer_call(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("phase", c_int32),
        ("layer", c_uint64),
        ("step", c_uint64),
        ("micro_batch", c_uint32),
        ("leaf", c_uint32),
        ("random_seed", c_uint64),
        ("input", c_void_p),
        ("input_bytes", c_uint64),
        ("output", c_void_p),
        ("output_bytes", c_uint64),
        ("saved", c_void_p),
        ("saved_bytes", c_uint64),
        ("parameters", POINTER(c_void_p)),
        ("parameter_counts", POINTER(c_uint64)),
        ("parameter_count", c_uint64),
        ("gradients", POINTER(c_void_p)),
        ("output_gradient", c_void_p),
        ("input_gradient", c_void_p),
        ("loss", POINTER(c_double)),
        ("loss_scale", c_double),
        ("batch", c_void_p),
    ]


trireme_layer_callback = CFUNCTYPE(c_int32, POINTER(trireme_layer_call), c_void_p)


class trireme_layer(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("name", c_char_p),
        ("first_parameter", c_uint64),
        ("parameter_count", c_uint64),
        ("forward", trireme_layer_callback),
        ("backward", trireme_layer_callback),
        ("user_data", c_void_p),
        ("output_bytes", c_uint64),
        ("saved_bytes", c_uint64),
    ]


class trireme_trainer_metrics(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("stop", c_int32),
        ("skipped", c_int32),
        ("reserved", c_uint32),
        ("step", c_uint64),
        ("micro_batches", c_uint64),
        ("sent_bytes", c_uint64),
        ("loss", c_double),
        ("gradient_norm", c_double),
        ("learning_rate", c_double),
        ("loss_scale", c_double),
        ("seconds", c_double),
        ("exposed_seconds", c_double),
    ]


trireme_trainer_callback = CFUNCTYPE(c_int32, POINTER(trireme_trainer_metrics), c_void_p)


class trireme_trainer_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("micro_batches", c_uint32),
        ("reserved", c_uint32),
        ("checkpoint_every", c_uint64),
        ("activation_budget_bytes", c_uint64),
        ("seed", c_uint64),
        ("after_step", trireme_trainer_callback),
        ("user_data", c_void_p),
        ("offload_path", c_char_p),
        ("offload_buffer_bytes", c_uint64),
    ]


class trireme_trainer_info(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("micro_batches", c_uint32),
        ("layers", c_uint64),
        ("stretches", c_uint64),
        ("recomputed", c_uint64),
        ("planned_checkpoint_bytes", c_uint64),
        ("planned_stretch_bytes", c_uint64),
        ("planned_gradient_bytes", c_uint64),
        ("planned_parameter_gradient_bytes", c_uint64),
        ("planned_exchange_bytes", c_uint64),
        ("allocated_bytes", c_uint64),
        ("largest_bytes", c_uint64),
        ("least_bytes", c_uint64),
        ("planned_window_bytes", c_uint64),
    ]


_status = c_int32
_handle = c_void_p

# As PROTOTYPES of _native.py.
TRAINER: dict[str, tuple[Any, list[Any]]] = {
    "trireme_trainer_create": (
        _status,
        [
            _handle,
            POINTER(trireme_layer),
            c_uint64,
            POINTER(trireme_trainer_options),
            POINTER(c_void_p),
        ],
    ),
    "trireme_trainer_destroy": (None, [_handle]),
    "trireme_trainer_step": (_status, [_handle, c_void_p, POINTER(trireme_trainer_metrics)]),
    "trireme_trainer_evaluate": (_status, [_handle, c_void_p, POINTER(c_double)]),
    "trireme_trainer_request_stop": (_status, [_handle]),
    "trireme_trainer_get_info": (_status, [_handle, POINTER(trireme_trainer_info)]),
    "trireme_trainer_get_offload_info": (_status, [_handle, POINTER(trireme_offload_info)]),
}
