"""The C ABI as Python sees it: constants, structs and prototypes. Only this file and
_native_training.py and _native_trainer.py, which it includes, know them.

Everything here mirrors include/trireme/*.h; tests compare it with the released layout and with
the list of exported symbols.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from ._native_trainer import *
from ._native_trainer import TRAINER
from ._native_training import *
from ._native_training import TRAINING

# ---- status.h ------------------------------------------------------------------------------

TRIREME_OK = 0
TRIREME_ERROR_INVALID_ARGUMENT = -1
TRIREME_ERROR_INVALID_HANDLE = -2
TRIREME_ERROR_INVALID_STATE = -3
TRIREME_ERROR_UNSUPPORTED = -4
TRIREME_ERROR_OUT_OF_MEMORY = -5
TRIREME_ERROR_TIMEOUT = -6
TRIREME_ERROR_ABORTED = -7
TRIREME_ERROR_PEER_LOST = -8
TRIREME_ERROR_MISMATCH = -9
TRIREME_ERROR_CORRUPT = -10
TRIREME_ERROR_AUTHENTICATION = -11
TRIREME_ERROR_SYSTEM = -12
TRIREME_ERROR_CALLBACK = -13
TRIREME_ERROR_CANCELLED = -14
TRIREME_ERROR_INTERNAL = -15

TRIREME_MAX_BLAMED_RANKS = 16


class trireme_error_info(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("code", c_int32),
        ("sequence", c_uint64),
        ("blamed_count", c_uint32),
        ("system_error", c_int32),
        ("blamed", c_int32 * TRIREME_MAX_BLAMED_RANKS),
        ("operation", c_char * 32),
        ("communicator", c_char * 64),
        ("try_again", c_uint32),
        ("reserved", c_uint32),
    ]


# ---- types.h -------------------------------------------------------------------------------

TRIREME_DTYPE_I8 = 1
TRIREME_DTYPE_U8 = 2
TRIREME_DTYPE_I16 = 3
TRIREME_DTYPE_U16 = 4
TRIREME_DTYPE_I32 = 5
TRIREME_DTYPE_U32 = 6
TRIREME_DTYPE_I64 = 7
TRIREME_DTYPE_U64 = 8
TRIREME_DTYPE_F16 = 9
TRIREME_DTYPE_BF16 = 10
TRIREME_DTYPE_F32 = 11
TRIREME_DTYPE_F64 = 12
TRIREME_DTYPE_F8E4M3 = 13
TRIREME_DTYPE_F8E5M2 = 14
TRIREME_DTYPE_BOOL = 15
TRIREME_DTYPE_BYTES = 16

TRIREME_SUM = 1
TRIREME_AVERAGE = 2
TRIREME_PRODUCT = 3
TRIREME_MIN = 4
TRIREME_MAX = 5
TRIREME_BAND = 6
TRIREME_BOR = 7
TRIREME_BXOR = 8
TRIREME_SCALED_SUM = 9

TRIREME_DEVICE_DEFAULT = 0
TRIREME_DEVICE_HOST = 1
TRIREME_DEVICE_CUDA = 2


class trireme_device(Structure):
    _fields_ = [("kind", c_int32), ("index", c_int32)]


class trireme_stream(Structure):
    _fields_ = [("kind", c_int32), ("reserved", c_uint32), ("native", c_void_p)]


# ---- version.h -----------------------------------------------------------------------------

TRIREME_VERSION_MAJOR = 1
TRIREME_VERSION_MINOR = 0
TRIREME_VERSION_PATCH = 0
TRIREME_VERSION = 1000000

TRIREME_OPERATION_ALL_REDUCE = 1
TRIREME_OPERATION_REDUCE_SCATTER = 2
TRIREME_OPERATION_REDUCE_SCATTER_V = 3
TRIREME_OPERATION_ALL_GATHER = 4
TRIREME_OPERATION_ALL_GATHER_V = 5
TRIREME_OPERATION_BROADCAST = 6
TRIREME_OPERATION_BARRIER = 7
TRIREME_OPERATION_SEND = 8
TRIREME_OPERATION_RECEIVE = 9
TRIREME_OPERATION_REDUCE = 10
TRIREME_OPERATION_GATHER = 11
TRIREME_OPERATION_GATHER_V = 12
TRIREME_OPERATION_SCATTER = 13
TRIREME_OPERATION_SCATTER_V = 14
TRIREME_OPERATION_ALL_TO_ALL = 15
TRIREME_OPERATION_ALL_TO_ALL_V = 16
TRIREME_OPERATION_PROBE = 17


class trireme_capability_query(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("operation", c_int32),
        ("dtype", c_int32),
        ("reduction", c_int32),
        ("device", c_int32),
        ("reserved", c_uint32),
        ("backend", c_char_p),
    ]


# ---- log.h ---------------------------------------------------------------------------------

TRIREME_LOG_ERROR = 1
TRIREME_LOG_WARNING = 2
TRIREME_LOG_INFO = 3
TRIREME_LOG_DEBUG = 4

trireme_log_callback = CFUNCTYPE(None, c_int32, c_char_p, c_void_p)


# ---- transport.h ---------------------------------------------------------------------------

TRIREME_TRANSPORT_FRAME_BYTES_MIN = 1024

trireme_transport_send = CFUNCTYPE(c_int32, c_void_p, c_int32, c_void_p, c_uint64, c_uint64)
trireme_transport_receive = CFUNCTYPE(
    c_int32, c_void_p, POINTER(c_int32), c_void_p, c_uint64, POINTER(c_uint64), c_uint64
)
trireme_transport_released = CFUNCTYPE(None, c_void_p)


class trireme_transport(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("user_data", c_void_p),
        ("maximum_frame_bytes", c_uint64),
        ("send", trireme_transport_send),
        ("receive", trireme_transport_receive),
        ("released", trireme_transport_released),
    ]


# ---- communicator.h ------------------------------------------------------------------------


class trireme_communicator_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("flags", c_uint32),
        ("rendezvous", c_char_p),
        ("backend", c_char_p),
        ("name", c_char_p),
        ("timeout_ns", c_uint64),
        ("device", trireme_device),
        ("transport", POINTER(trireme_transport)),
        ("stall_warning_ns", c_uint64),
    ]


class trireme_group_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("name", c_char_p),
        ("timeout_ns", c_uint64),
    ]


class trireme_communicator_statistics(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("operations", c_uint64),
        ("failures", c_uint64),
        ("bytes_sent", c_uint64),
        ("bytes_received", c_uint64),
    ]


# ---- store.h -------------------------------------------------------------------------------


class trireme_store_options(Structure):
    _fields_ = [("struct_size", c_uint32), ("flags", c_uint32), ("timeout_ns", c_uint64)]


# ---- mesh.h --------------------------------------------------------------------------------

TRIREME_MAX_AXES = 16

TRIREME_MESH_BY_NAME = 0
TRIREME_MESH_LAST_FASTEST = 1
TRIREME_MESH_FIRST_FASTEST = 2


class trireme_mesh_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("axis_count", c_uint32),
        ("order", c_int32),
        ("axis_names", POINTER(c_char_p)),
        ("axis_sizes", POINTER(c_int32)),
        ("timeout_ns", c_uint64),
    ]


# ---- collectives.h and request.h -----------------------------------------------------------


TRIREME_CALL_REPRODUCIBLE = 1
TRIREME_CALL_BUFFERED = 2
TRIREME_CALL_ANY_TAG = 4
TRIREME_ALGORITHM_AUTOMATIC = 0
TRIREME_ALGORITHM_DIRECT = 1
TRIREME_ALGORITHM_RING = 2
TRIREME_ALGORITHM_HALVING_DOUBLING = 3
TRIREME_ALGORITHM_BINOMIAL = 4
TRIREME_ALGORITHM_DOUBLE_TREE = 5
TRIREME_ALGORITHM_BRUCK = 6
TRIREME_ALGORITHM_PAIRWISE = 7
TRIREME_ALGORITHM_NATIVE = 8
TRIREME_PRIORITY_NORMAL = 0
TRIREME_PRIORITY_HIGH = 1


class trireme_operation_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("timeout_ns", c_uint64),
        ("scale", c_double),
        ("stream", trireme_stream),
        ("priority", c_int32),
        ("algorithm", c_int32),
        ("wire_dtype", c_int32),
        ("reserved", c_uint32),
    ]


TRIREME_ANY_SOURCE = -1


class trireme_message_info(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("source", c_int32),
        ("tag", c_uint64),
        ("count", c_uint64),
        ("dtype", c_int32),
        ("reserved", c_uint32),
    ]


trireme_completion_callback = CFUNCTYPE(None, c_int32, c_void_p)


# ---- prototypes ----------------------------------------------------------------------------

_status = c_int32
_handle = c_void_p
_memory = c_void_p
_options = POINTER(trireme_operation_options)
_out_handle = POINTER(c_void_p)
_counts = POINTER(c_uint64)
_text_out = [c_void_p, c_uint64, POINTER(c_uint64)]


_reduces = [_handle, _memory, _memory, c_uint64, c_int32, c_int32, _options]
_reduces_v = [_handle, _memory, _memory, _counts, c_int32, c_int32, _options]
_gathers = [_handle, _memory, _memory, c_uint64, c_int32, _options]
_gathers_v = [_handle, _memory, _memory, _counts, c_int32, _options]
_addresses = POINTER(c_void_p)
_lists = [_handle, _addresses, _addresses, _counts, c_uint64, c_int32]
_reduce_lists = [*_lists, c_int32, _options]
_gather_lists = [*_lists, _options]
_broadcasts = [_handle, _memory, c_uint64, c_int32, c_int32, _options]
_waits = [_handle, _options]
_half = [_memory, c_uint64, c_int32, c_uint64]
_passes = [_handle, _memory, c_uint64, c_int32, c_int32, c_uint64, _options]


# Every exported function: its result and its arguments.
PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "trireme_status_name": (c_char_p, [_status]),
    "trireme_last_error": (c_char_p, []),
    "trireme_last_error_info": (_status, [POINTER(trireme_error_info)]),
    "trireme_dtype_size": (c_uint64, [c_int32]),
    "trireme_dtype_name": (c_char_p, [c_int32]),
    "trireme_reduction_name": (c_char_p, [c_int32]),
    "trireme_algorithm_name": (c_char_p, [c_int32]),
    "trireme_version": (c_uint32, []),
    "trireme_build_info": (c_char_p, []),
    "trireme_capability": (_status, [POINTER(trireme_capability_query)]),
    "trireme_set_log_callback": (_status, [trireme_log_callback, c_int32, c_void_p]),
    "trireme_failpoint_count": (c_uint32, []),
    "trireme_failpoint_name": (c_char_p, [c_uint32]),
    "trireme_failpoint_set": (_status, [c_char_p]),
    "trireme_failpoint_hits": (_status, [c_char_p, POINTER(c_uint64)]),
    "trireme_communicator_create": (
        _status,
        [POINTER(trireme_communicator_options), _out_handle],
    ),
    "trireme_communicator_destroy": (None, [_handle]),
    "trireme_communicator_wait_ready": (_status, [_handle, c_uint64]),
    "trireme_communicator_rank": (_status, [_handle, POINTER(c_int32)]),
    "trireme_communicator_world_size": (_status, [_handle, POINTER(c_int32)]),
    "trireme_communicator_backend": (_status, [_handle, *_text_out]),
    "trireme_communicator_abort": (_status, [_handle, c_char_p]),
    "trireme_communicator_get_statistics": (
        _status,
        [_handle, POINTER(trireme_communicator_statistics)],
    ),
    "trireme_communicator_flight_record": (_status, [_handle, *_text_out]),
    "trireme_communicator_last_calls": (_status, [_handle, *_text_out]),
    "trireme_communicator_ranks": (_status, [_handle, POINTER(c_int32), c_uint64]),
    "trireme_communicator_split": (
        _status,
        [_handle, c_int32, c_int32, POINTER(trireme_group_options), _out_handle],
    ),
    "trireme_communicator_subgroup": (
        _status,
        [_handle, POINTER(c_int32), c_uint64, POINTER(trireme_group_options), _out_handle],
    ),
    "trireme_mesh_create": (
        _status,
        [_handle, POINTER(trireme_mesh_options), _out_handle],
    ),
    "trireme_mesh_destroy": (None, [_handle]),
    "trireme_mesh_axis_size": (_status, [_handle, c_char_p, POINTER(c_int32)]),
    "trireme_mesh_coordinates": (_status, [_handle, c_int32, POINTER(c_int32), c_uint64]),
    "trireme_mesh_rank": (_status, [_handle, POINTER(c_int32), c_uint64, POINTER(c_int32)]),
    "trireme_mesh_group": (
        _status,
        [
            _handle,
            POINTER(c_char_p),
            c_uint32,
            c_int32,
            POINTER(c_int32),
            c_uint64,
            POINTER(c_uint64),
        ],
    ),
    "trireme_mesh_axis_communicator": (_status, [_handle, c_char_p, _out_handle]),
    "trireme_mesh_axes_communicator": (
        _status,
        [_handle, POINTER(c_char_p), c_uint32, POINTER(trireme_group_options), _out_handle],
    ),
    "trireme_store_serve": (_status, [c_char_p, POINTER(trireme_store_options), _out_handle]),
    "trireme_store_connect": (_status, [c_char_p, POINTER(trireme_store_options), _out_handle]),
    "trireme_store_destroy": (None, [_handle]),
    "trireme_store_address": (_status, [_handle, *_text_out]),
    "trireme_store_set": (_status, [_handle, c_char_p, c_char_p, c_uint64]),
    "trireme_store_get": (
        _status,
        [_handle, c_char_p, c_void_p, c_uint64, POINTER(c_uint64), POINTER(c_int32)],
    ),
    "trireme_store_wait": (_status, [_handle, POINTER(c_char_p), c_uint64, c_uint64]),
    "trireme_store_add": (_status, [_handle, c_char_p, c_int64, POINTER(c_int64)]),
    "trireme_store_compare_exchange": (
        _status,
        [_handle, c_char_p, c_char_p, c_uint64, c_char_p, c_uint64, POINTER(c_int32)],
    ),
    "trireme_store_delete": (_status, [_handle, c_char_p, POINTER(c_int32)]),
    "trireme_communicator_agree": (_status, [_handle, POINTER(c_uint64), c_uint64]),
    "trireme_communicator_shrink": (
        _status,
        [_handle, POINTER(trireme_group_options), _out_handle],
    ),
    "trireme_communicator_duplicate": (
        _status,
        [_handle, POINTER(trireme_group_options), _out_handle],
    ),
    "trireme_all_reduce": (_status, _reduces),
    "trireme_all_reduce_start": (_status, [*_reduces, _out_handle]),
    "trireme_reduce_scatter": (_status, _reduces),
    "trireme_reduce_scatter_start": (_status, [*_reduces, _out_handle]),
    "trireme_reduce_scatter_v": (_status, _reduces_v),
    "trireme_reduce_scatter_v_start": (_status, [*_reduces_v, _out_handle]),
    "trireme_all_gather": (_status, _gathers),
    "trireme_all_gather_start": (_status, [*_gathers, _out_handle]),
    "trireme_all_gather_v": (_status, _gathers_v),
    "trireme_all_gather_v_start": (_status, [*_gathers_v, _out_handle]),
    "trireme_broadcast": (_status, _broadcasts),
    "trireme_broadcast_start": (_status, [*_broadcasts, _out_handle]),
    "trireme_reduce": (
        _status,
        [_handle, _memory, _memory, c_uint64, c_int32, c_int32, c_int32, _options],
    ),
    "trireme_reduce_start": (
        _status,
        [_handle, _memory, _memory, c_uint64, c_int32, c_int32, c_int32, _options, _out_handle],
    ),
    "trireme_gather": (_status, [_handle, _memory, _memory, c_uint64, c_int32, c_int32, _options]),
    "trireme_gather_start": (
        _status,
        [_handle, _memory, _memory, c_uint64, c_int32, c_int32, _options, _out_handle],
    ),
    "trireme_gather_v": (
        _status,
        [_handle, _memory, _memory, _counts, c_int32, c_int32, _options],
    ),
    "trireme_gather_v_start": (
        _status,
        [_handle, _memory, _memory, _counts, c_int32, c_int32, _options, _out_handle],
    ),
    "trireme_scatter": (
        _status,
        [_handle, _memory, _memory, c_uint64, c_int32, c_int32, _options],
    ),
    "trireme_scatter_start": (
        _status,
        [_handle, _memory, _memory, c_uint64, c_int32, c_int32, _options, _out_handle],
    ),
    "trireme_scatter_v": (
        _status,
        [_handle, _memory, _memory, _counts, c_int32, c_int32, _options],
    ),
    "trireme_scatter_v_start": (
        _status,
        [_handle, _memory, _memory, _counts, c_int32, c_int32, _options, _out_handle],
    ),
    "trireme_all_to_all": (_status, [_handle, _memory, _memory, c_uint64, c_int32, _options]),
    "trireme_all_to_all_start": (
        _status,
        [_handle, _memory, _memory, c_uint64, c_int32, _options, _out_handle],
    ),
    "trireme_all_to_all_v": (
        _status,
        [_handle, _memory, _counts, _memory, _counts, c_int32, _options],
    ),
    "trireme_all_to_all_v_start": (
        _status,
        [_handle, _memory, _counts, _memory, _counts, c_int32, _options, _out_handle],
    ),
    "trireme_group_start": (_status, []),
    "trireme_group_end": (_status, []),
    "trireme_all_reduce_list": (_status, _reduce_lists),
    "trireme_all_reduce_list_start": (_status, [*_reduce_lists, _out_handle]),
    "trireme_reduce_scatter_list": (_status, _reduce_lists),
    "trireme_reduce_scatter_list_start": (_status, [*_reduce_lists, _out_handle]),
    "trireme_all_gather_list": (_status, _gather_lists),
    "trireme_all_gather_list_start": (_status, [*_gather_lists, _out_handle]),
    "trireme_broadcast_list": (
        _status,
        [_handle, POINTER(c_void_p), _counts, c_uint64, c_int32, c_int32, _options],
    ),
    "trireme_broadcast_list_start": (
        _status,
        [_handle, POINTER(c_void_p), _counts, c_uint64, c_int32, c_int32, _options, _out_handle],
    ),
    "trireme_broadcast_to_buffer": (
        _status,
        [_handle, _memory, c_uint64, c_int32, c_int32, _options, _out_handle],
    ),
    "trireme_scatter_to_buffer": (
        _status,
        [_handle, _memory, _counts, c_int32, c_int32, _options, _out_handle],
    ),
    "trireme_all_gather_to_buffer": (
        _status,
        [_handle, _memory, c_uint64, c_int32, _options, _counts, _out_handle],
    ),
    "trireme_barrier": (_status, _waits),
    "trireme_barrier_start": (_status, [*_waits, _out_handle]),
    "trireme_send": (_status, _passes),
    "trireme_send_start": (_status, [*_passes, _out_handle]),
    "trireme_receive": (_status, _passes),
    "trireme_receive_start": (_status, [*_passes, _out_handle]),
    "trireme_receive_message": (
        _status,
        [*_passes, POINTER(trireme_message_info)],
    ),
    "trireme_receive_message_start": (
        _status,
        [_handle, _memory, c_uint64, c_int32, c_int32, c_uint64, _options, _out_handle],
    ),
    "trireme_receive_to_buffer": (
        _status,
        [_handle, c_int32, c_int32, c_uint64, _options, POINTER(trireme_message_info), _out_handle],
    ),
    "trireme_probe": (
        _status,
        [_handle, c_int32, c_uint64, _options, POINTER(trireme_message_info)],
    ),
    "trireme_probe_start": (_status, [_handle, c_int32, c_uint64, _options, _out_handle]),
    "trireme_send_receive": (
        _status,
        [_handle, *_half, *_half, c_int32, _options],
    ),
    "trireme_request_message": (_status, [_handle, POINTER(trireme_message_info)]),
    "trireme_request_wait_all": (_status, [POINTER(c_void_p), c_uint64, c_uint64]),
    "trireme_request_test": (_status, [_handle, POINTER(c_int32)]),
    "trireme_request_wait": (_status, [_handle, c_uint64]),
    "trireme_request_wait_any": (
        _status,
        [POINTER(c_void_p), c_uint64, c_uint64, POINTER(c_uint64)],
    ),
    "trireme_request_cancel": (_status, [_handle]),
    "trireme_request_on_complete": (_status, [_handle, trireme_completion_callback, c_void_p]),
    "trireme_request_fd": (_status, [_handle, POINTER(c_int32)]),
    "trireme_request_destroy": (None, [_handle]),
    "trireme_buffer_alloc": (_status, [_handle, c_uint64, _out_handle]),
    "trireme_buffer_destroy": (None, [_handle]),
    "trireme_buffer_data": (_status, [_handle, POINTER(c_void_p)]),
    "trireme_buffer_size": (_status, [_handle, POINTER(c_uint64)]),
    **TRAINER,
    **TRAINING,
}


# ---- Python's own buffer interface ---------------------------------------------------------


class Py_buffer(Structure):
    """What CPython tells about an object's memory; the way to the address of read-only memory."""

    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", c_char_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.restype = ctypes.c_int
_get_buffer.argtypes = [ctypes.py_object, POINTER(Py_buffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.restype = None
_release_buffer.argtypes = [POINTER(Py_buffer)]


def address_of(view: memoryview) -> int | None:
    """Address of a contiguous view's memory, good while the view lives; None if it is empty."""
    if not view.nbytes:
        return None
    if not view.readonly:
        return ctypes.addressof(c_char.from_buffer(view))
    info = Py_buffer()
    _get_buffer(view, ctypes.byref(info), 0)  # raises by itself
    address: int = info.buf
    _release_buffer(ctypes.byref(info))
    return address


_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = [c_void_p, ctypes.c_ssize_t]


def new_bytes(size: int) -> bytes:
    """Bytes with no content yet, to be filled before anybody else sees them."""
    made: bytes = _new_bytes(None, size)
    return made


# ---- loading -------------------------------------------------------------------------------


def _load() -> ctypes.CDLL:
    beside = pathlib.Path(__file__).with_name("libtrireme.so.1")
    path = os.environ.get("TRIREME_LIBRARY") or (str(beside) if beside.exists() else None)
    try:
        loaded = ctypes.CDLL(path or "libtrireme.so.1")
        for name, (result, arguments) in PROTOTYPES.items():
            function = getattr(loaded, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"trireme: {path or 'libtrireme.so.1'} cannot be used: {error}; set TRIREME_LIBRARY to "
            "the path of libtrireme.so.1"
        ) from None
    version = loaded.trireme_version()
    if version // 1000000 != TRIREME_VERSION_MAJOR:
        raise ImportError(
            f"trireme: {path or 'libtrireme.so.1'} has version {version}, this package needs "
            f"{TRIREME_VERSION_MAJOR}.x"
        )
    return loaded


library = _load()
