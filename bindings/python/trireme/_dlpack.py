"""DLPack, the exchange of arrays between libraries: its structs, and capsules of memory.

https://dmlc.github.io/dlpack/latest/c_api.html describes the structs, and
https://data-apis.org/array-api/latest/design_topics/data_interchange.html the calls.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import sys
from ctypes import POINTER, PYFUNCTYPE, Structure, byref, c_char_p, c_int, c_int32, c_int64
from ctypes import c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, cast, py_object, pythonapi
from typing import Any, Sequence

from . import _native

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  #: Kinds of devices.
_READ_ONLY, _COPIED = 1, 2
_VERSION = (1, 0)

#: Type and bits of an element, by dtype.
TYPES = {
    _native.TRIREME_DTYPE_I8: (0, 8),
    _native.TRIREME_DTYPE_U8: (1, 8),
    _native.TRIREME_DTYPE_I16: (0, 16),
    _native.TRIREME_DTYPE_U16: (1, 16),
    _native.TRIREME_DTYPE_I32: (0, 32),
    _native.TRIREME_DTYPE_U32: (1, 32),
    _native.TRIREME_DTYPE_I64: (0, 64),
    _native.TRIREME_DTYPE_U64: (1, 64),
    _native.TRIREME_DTYPE_F16: (2, 16),
    _native.TRIREME_DTYPE_F32: (2, 32),
    _native.TRIREME_DTYPE_F64: (2, 64),
    _native.TRIREME_DTYPE_BF16: (4, 16),
    _native.TRIREME_DTYPE_BOOL: (6, 8),
    _native.TRIREME_DTYPE_F8E4M3: (10, 8),
    _native.TRIREME_DTYPE_F8E5M2: (12, 8),
}
DTYPE_OF_TYPE = {kind: code for code, kind in TYPES.items()}


class _Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_kind", c_int32),
        ("device_index", c_int32),
        ("dimensions", c_int32),
        ("type", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(Structure):
    _fields_ = [("tensor", _Tensor), ("owner", c_void_p), ("delete", c_void_p)]


class _Versioned(Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("owner", c_void_p),
        ("delete", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


_NAMES: dict[bytes, Any] = {b"dltensor": _Managed, b"dltensor_versioned": _Versioned}

_is_valid = PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", pythonapi))
_pointer_of = PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", pythonapi))
_new_capsule = PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", pythonapi))


# ---- memory that is given away -------------------------------------------------------------


class _Given:
    """Memory that is given away. Its capsule is None once a consumer is seen to have taken it."""

    __slots__ = ("capsule", "kept")

    def __init__(self, capsule: object, kept: object) -> None:
        self.capsule = capsule
        self.kept = kept

    def holders(self) -> int:
        return sys.getrefcount(self.capsule)


class _Gifts:
    """All memory that is given away, by the address of its struct.

    No capsule has a destructor. A consumer drops a capsule while its own error is set, and a
    callback of ctypes loses that error. So each capsule is held here, and end_unused() ends a
    capsule without another holder. Methods use attributes: globals are None when Python ends.
    """

    def __init__(self) -> None:
        self.all: dict[int, _Given] = {}
        self._alone = _Given(object(), None).holders()
        self._names = tuple(_NAMES)
        self._is_valid = _is_valid
        self._address_of = id

    def end_unused(self) -> None:
        """Gives back memory whose capsule is held by no one else and was not taken."""
        for key in list(self.all):
            given = self.all.get(key)
            if given is None or given.capsule is None:
                continue
            # Counted before its name is read: without another holder the name stays as it is.
            is_alone = given.holders() <= self._alone
            capsule = given.capsule  # another thread may be here, too
            address = self._address_of(capsule)
            # A consumer gives a capsule that it takes another name, and calls the deleter itself.
            if not any(self._is_valid(address, name) for name in self._names):
                given.capsule = None
            elif is_alone:
                self.all.pop(key, None)

    def after_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] > 0:
            self.end_unused()


_gifts = _Gifts()
_delete = PYFUNCTYPE(None, c_void_p)(_gifts.all.pop)
end_unused = _gifts.end_unused
gc.callbacks.append(_gifts.after_collection)
atexit.register(gc.callbacks.remove, _gifts.after_collection)

# Consumers may call it as long as the process lives.
pythonapi.Py_IncRef(py_object(_delete))


def capsule_of(
    address: int | None,
    shape: Sequence[int],
    dtype: int,
    device: tuple[int, int],
    owner: object,
    max_version: tuple[int, int] | None,
    flags: int = 0,
) -> Any:
    """A capsule of memory that `owner` keeps: with a version if the consumer knows 1.0."""
    end_unused()
    extents = (c_int64 * max(1, len(shape)))(*shape)
    steps = (c_int64 * max(1, len(shape)))()
    step = 1
    for i in reversed(range(len(shape))):
        steps[i] = step
        step *= shape[i]
    kind, bits = TYPES[dtype]
    tensor = _Tensor(address, *device, len(shape), kind, bits, 1, extents, steps, 0)
    delete = cast(_delete, c_void_p)
    managed: Any
    if max_version is not None and max_version[0] >= 1:
        name = b"dltensor_versioned"
        managed = _Versioned(*_VERSION, None, delete, flags, tensor)
    else:
        name = b"dltensor"
        managed = _Managed(tensor, None, delete)
    capsule = _new_capsule(byref(managed), name_of(name), None)
    kept = (managed, extents, steps, owner, _texts[name])
    _gifts.all[ctypes.addressof(managed)] = _Given(capsule, kept)
    return capsule


_texts = {name: ctypes.create_string_buffer(name) for name in _NAMES}


def name_of(name: bytes) -> Any:
    """The same text for every capsule, which keeps its address alone."""
    return cast(_texts[name], c_char_p)


# ---- memory of others ----------------------------------------------------------------------


class Array:
    """The array of a capsule. It keeps the capsule, and so the memory."""

    def __init__(self, capsule: object) -> None:
        self.capsule = capsule
        for name, struct in _NAMES.items():
            if _is_valid(id(capsule), name):
                managed = cast(_pointer_of(id(capsule), name), POINTER(struct)).contents
                break
        else:
            raise TypeError("__dlpack__() gives no capsule of DLPack that is still unused")
        tensor = managed.tensor
        if getattr(managed, "major", 1) != 1:
            raise TypeError(f"DLPack {managed.major} is not known, only 1")
        count = tensor.dimensions
        self.shape = tuple(tensor.shape[i] for i in range(count))
        self.strides = tuple(tensor.strides[i] for i in range(count)) if tensor.strides else None
        self.type = (tensor.type, tensor.bits)
        self.lanes = tensor.lanes
        self.address = (tensor.data or 0) + tensor.byte_offset
        flags = getattr(managed, "flags", 0)
        self.readonly = bool(flags & _READ_ONLY)
        self.copied = bool(flags & _COPIED)

    def __del__(self, end: Any = end_unused) -> None:
        self.capsule = None
        end()
