"""Buffers of the library, and views of its memory."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import byref, c_uint64, c_void_p
from math import prod
from typing import Any, Callable, Sequence

from . import _dlpack, _native
from ._device import KINDS
from ._device_memory import DeviceArray, cast, refuse_view
from ._errors import InvalidHandleError, check
from ._native import library
from ._operation import Operations
from ._values import LETTERS, Dtype, Name, dtype_number, in_range, number_of, size_of


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
        return cast(memoryview(bytearray()), letter)  # Python has no view with an extent of 0
    array = (ctypes.c_ubyte * (count * size)).from_address(address)
    setattr(array, "owner", owner)
    return cast(memoryview(array).cast("B"), letter, shape)


class Owner:
    """Keeps memory of the library: the memory goes back when the last reference to this goes."""

    __slots__ = ("__weakref__",)

    def __init__(self, destroy: Callable[..., object], *arguments: object) -> None:
        # Not at exit: views may live until then, and the system takes the memory back by itself.
        weakref.finalize(self, destroy, *arguments).atexit = False


class Buffer:
    """Zeroed memory where its communicator works.

    For a communicator of the host peers of this host read it without a copy. Pass it, or a piece of
    view(), to the operations of its communicator; numpy.asarray() of a view makes no copy.

    For a communicator of a device it is memory of that device, or with kind="pinned" memory of the
    host that the device reaches, too. array() gives it to torch, cupy and others.

    close() lets go of it; the memory goes back once no view and no array is left. Memory of a device
    then waits for the work in the device's default stream. Work in other streams is done before.
    """

    _ranks: Operations | None = None

    def __init__(self, communicator: Operations, nbytes: int, kind: Name = "default") -> None:
        handle = c_void_p()
        number = number_of(kind, KINDS, "kind")
        check(
            library.trireme_buffer_alloc_kind(
                communicator._handle, number, in_range(nbytes, 64, "nbytes"), byref(handle)
            )
        )
        if communicator._device is None:
            self._adopt(handle)
        else:
            is_pinned = number == _native.TRIREME_MEMORY_KIND_PINNED
            place = _dlpack.CUDA_HOST if is_pinned else _dlpack.CUDA
            self._adopt(handle, (place, communicator._device))
        self._ranks = communicator

    def _adopt(self, handle: c_void_p, device: tuple[int, int] = (_dlpack.CPU, 0)) -> None:
        """Becomes the object of a handle that the library has just made."""
        owner = Owner(library.trireme_buffer_destroy, handle.value)
        address = c_void_p()
        check(library.trireme_buffer_get_data(handle, byref(address)))
        size = c_uint64()
        check(library.trireme_buffer_get_bytes(handle, byref(size)))
        self._address = address.value
        self._device = device
        self._memory: memoryview | None = None
        if self._device[0] != _dlpack.CUDA:
            self._memory = view_of(address.value, size.value, 1, "B", owner)
        self._owner: Owner | None = owner
        self._nbytes = size.value

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self._nbytes

    @property
    def memory(self) -> memoryview:
        """Its bytes, writable. The host cannot read memory of a device."""
        self._open()
        if self._memory is None:
            raise refuse_view()
        return self._memory[:]

    def _open(self) -> Owner:
        if self._owner is None:
            raise InvalidHandleError("the buffer is closed", _native.TRIREME_ERROR_INVALID_HANDLE)
        return self._owner

    def view(self, dtype: Dtype = "u8") -> memoryview[Any]:
        """Its elements. f16 and bf16 show as 16-bit integers, f8 as bytes."""
        letter = LETTERS.get(dtype_number(dtype))
        if letter is None:
            raise TypeError(f"{dtype!r} is no dtype")
        return cast(self.memory, letter)

    def array(
        self,
        dtype: Dtype = "u8",
        shape: int | Sequence[int] | None = None,
        *,
        at: int = 0,
    ) -> DeviceArray:
        """Its elements from byte `at` on, for other libraries: an object with __dlpack__() and, of
        memory of a device, __cuda_array_interface__. Without a shape, as many as follow."""
        owner = self._open()
        code = dtype_number(dtype)
        size = size_of(code)
        if size == 0:
            raise TypeError(f"{dtype!r} is no dtype")
        if not 0 <= at <= self._nbytes:
            raise ValueError(f"at is {at}, and the buffer has {self._nbytes} bytes")
        if shape is None:
            shape = (self._nbytes - at) // size
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        if min(extents, default=0) < 0 or prod(extents) * size > self._nbytes - at:
            raise ValueError(f"{list(extents)} x {size} bytes do not fit into {self._nbytes - at}")
        address = None if self._address is None else self._address + at
        return DeviceArray(owner, address, extents, code, self._device, self._ranks)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **options: Any) -> Any:
        """array() of its bytes, by DLPack."""
        return self.array().__dlpack__(**options)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._owner is None:  # whoever looks for the protocol hears that there is none
            raise AttributeError("a closed buffer has no __cuda_array_interface__")
        return self.array().__cuda_array_interface__

    def close(self) -> None:
        """Lets go of the memory; it is freed once no view of it is left."""
        self._memory = None
        self._owner = None
        _dlpack.end_unused()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._owner is None else ""
        return f"<trireme.Buffer {self._nbytes} bytes{state}>"


def adopt(handle: c_void_p) -> Buffer:
    """The buffer of a handle that the library has just made."""
    buffer = Buffer.__new__(Buffer)
    buffer._adopt(handle)
    return buffer
