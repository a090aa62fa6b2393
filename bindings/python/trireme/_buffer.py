"""Memory that the ranks of one host can read directly, and views of the library's memory."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import byref, c_uint64, c_void_p
from typing import Any, Callable

from . import _native
from ._errors import InvalidHandleError, check
from ._native import library
from ._operation import Operations
from ._values import LETTERS, Dtype, dtype_number, in_range


def _cast(view: Any, letter: str, shape: tuple[int, ...] | None = None) -> memoryview[Any]:
    if shape is not None:
        return view.cast(letter, shape)  # type: ignore[no-any-return]
    return view if letter == "B" else view.cast(letter)  # type: ignore[no-any-return]


def view_of(
    address: int | None,
    count: int,
    size: int,
    letter: str,
    owner: object,
    shape: tuple[int, ...] | None = None,
) -> memoryview[Any]:
    """A view of the library's memory that keeps `owner` alive as long as it is used."""
    if not address or not count:
        return _cast(memoryview(bytearray()), letter)  # Python has no view with an extent of 0
    array = (ctypes.c_ubyte * (count * size)).from_address(address)
    setattr(array, "owner", owner)
    return _cast(memoryview(array).cast("B"), letter, shape)


class Owner:
    """Keeps memory of the library: the memory goes back when the last reference to this goes."""

    __slots__ = ("__weakref__",)

    def __init__(self, destroy: Callable[..., object], *arguments: object) -> None:
        # Not at exit: views may live until then, and the system takes the memory back by itself.
        weakref.finalize(self, destroy, *arguments).atexit = False


class Buffer:
    """Zeroed memory that peers on this host read without a copy.

    Pass it, or a piece of view(), to the operations of its communicator; numpy.asarray() of a view
    makes no copy. close() lets go of it; the memory goes back once no view is left.
    """

    def __init__(self, communicator: Operations, nbytes: int) -> None:
        handle = c_void_p()
        check(
            library.trireme_buffer_alloc(
                communicator._handle, in_range(nbytes, 64, "nbytes"), byref(handle)
            )
        )
        self._adopt(handle)

    def _adopt(self, handle: c_void_p) -> None:
        """Becomes the object of a handle that the library has just made."""
        owner = Owner(library.trireme_buffer_destroy, handle.value)
        address = c_void_p()
        check(library.trireme_buffer_get_data(handle, byref(address)))
        size = c_uint64()
        check(library.trireme_buffer_get_bytes(handle, byref(size)))
        self._memory: memoryview | None = view_of(address.value, size.value, 1, "B", owner)
        self._owner: Owner | None = owner
        self._nbytes = size.value

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self._nbytes

    @property
    def memory(self) -> memoryview:
        """Its bytes, writable."""
        if self._memory is None:
            raise InvalidHandleError("the buffer is closed", _native.TRIREME_ERROR_INVALID_HANDLE)
        return self._memory[:]

    def view(self, dtype: Dtype = "u8") -> memoryview[Any]:
        """Its elements. f16 and bf16 show as 16-bit integers, f8 as bytes."""
        letter = LETTERS.get(dtype_number(dtype))
        if letter is None:
            raise TypeError(f"{dtype!r} is no dtype")
        return _cast(self.memory, letter)

    def close(self) -> None:
        """Lets go of the memory; it is freed once no view of it is left."""
        self._memory = None
        self._owner = None

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._memory is None else ""
        return f"<trireme.Buffer {self._nbytes} bytes{state}>"


def adopt(handle: c_void_p) -> Buffer:
    """The buffer of a handle that the library has just made."""
    buffer = Buffer.__new__(Buffer)
    buffer._adopt(handle)
    return buffer
