"""Reports about files of parameters, optimizer state or activations; access to ranges of state."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from ctypes import byref, c_void_p
from typing import Any, Callable

from . import _native
from ._device_memory import cast
from ._errors import InvalidArgumentError, check
from ._native import library
from ._values import LETTERS, check_shape, dtype_name, in_range, readable, size_of

_NARROW = (_native.TRIREME_DTYPE_F16, _native.TRIREME_DTYPE_BF16)


@dataclasses.dataclass(frozen=True)
class OffloadInfo:
    """Parameters, optimizer state or activations that lie in a file, of this rank."""

    path: str  #: The directory, as given.
    why_not_direct: str  #: The reason why O_DIRECT is not in use; "" if it is.
    why_not_io_uring: str  #: The reason why io_uring is not in use; "" if it is.
    file_bytes: int  #: Bytes in the file.
    resident_bytes: int  #: Bytes that stay in memory: beyond `ratio`, or in blocks that failed.
    buffer_bytes: int  #: Bytes of memory for blocks on their way to and from the file.
    block_bytes: int  #: Bytes of the largest piece that is read or written at once.
    read_bytes: int  #: Bytes asked of the file so far.
    written_bytes: int  #: Bytes given to the file so far.
    waited_seconds: float  #: Seconds that calls have waited for the disk so far.
    failed_writes: int  #: Blocks that could not be written; if they fit, they stay in memory.
    failed_offset: int  #: Where in the file the last failed write was, in bytes.
    failed_errno: int  #: errno of the last failed write; 0 if none failed.

    @property
    def direct(self) -> bool:
        """Whether the file is read and written past the system's cache."""
        return not self.why_not_direct

    @property
    def io_uring(self) -> bool:
        """Whether transfers go by io_uring; else by threads of the library."""
        return not self.why_not_io_uring


def _offload_info(get: Callable[[Any], int]) -> OffloadInfo:
    found = _native.trireme_offload_info(struct_size=ctypes.sizeof(_native.trireme_offload_info))
    check(get(byref(found)))
    values = {field.name: getattr(found, field.name) for field in dataclasses.fields(OffloadInfo)}
    for name in ("path", "why_not_direct", "why_not_io_uring"):
        values[name] = values[name].decode()
    return OffloadInfo(**values)


class OffloadedState:
    """Reports about the file of an Optimizer, and access to ranges of state."""

    @property
    def _handle(self) -> int | None:
        raise NotImplementedError

    @property
    def offload_info(self) -> OffloadInfo:
        """How the state lies, and what the disk has done; needs `offload`."""
        handle = self._handle
        return _offload_info(
            lambda found: library.trireme_optimizer_get_offload_info(handle, found)
        )

    def _raw_range(self, index: int) -> tuple[int, Any]:
        number = in_range(index, 64, "index")
        found = _native.trireme_state_range(struct_size=ctypes.sizeof(_native.trireme_state_range))
        check(library.trireme_optimizer_get_range(self._handle, number, byref(found)))
        return number, found

    def read_range(self, index: int) -> memoryview[Any]:
        """A copy of the elements of ranges()[index], wherever they lie."""
        number, found = self._raw_range(index)
        memory = bytearray(found.count * size_of(found.dtype))
        address = c_void_p(_native.address_of(memoryview(memory)))
        check(library.trireme_optimizer_read_range(self._handle, number, address, len(memory)))
        return cast(memoryview(memory), LETTERS[found.dtype])

    def write_range(self, index: int, data: Any) -> None:
        """Writes all elements of ranges()[index], wherever they lie, from as many of their type.

        f16 and bf16 may come as their bits, as read_range() gives them. Parameters are refused if
        their unit was gathered since the last step, load() or Model.set_parameters(), and ranks may
        keep copies: a copy would hide the new values.
        """
        view, address, count, code = readable(data, None, "data")
        number, found = self._raw_range(index)
        shape = tuple(found.shape[: found.dimensions])
        whole = found.count == math.prod(shape)
        check_shape(view, code, shape if whole else (found.count,), "data", f"range {number}")
        as_bits = code == _native.TRIREME_DTYPE_U16 and found.dtype in _NARROW
        if count != found.count or (code != found.dtype and not as_bits):
            raise InvalidArgumentError(
                f"data has {count} elements of {dtype_name(code)}, and range {number} "
                f"{found.count} of {dtype_name(found.dtype)}",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        check(library.trireme_optimizer_write_range(self._handle, number, address, view.nbytes))
