"""The C ABI as Python sees it, and where the library is loaded from.

tools/bindgen.py generates the package _abi from the headers, with their C names. Tests compare it
with the released layout and with the list of exported symbols.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import POINTER, Structure, c_char, c_char_p, c_void_p

from ._abi import *

# ---- Python's own buffer interface ---------------------------------------------------------


class Py_buffer(Structure):
    """CPython's description of an object's memory; it gives the address of read-only memory."""

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
