"""What lies in a file: parameters, state of optimizers, activations; and ranges of state wherever they lie."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from ctypes import byref, c_void_p
from typing import Any, Callable

from . import _native
from ._buffer import _cast
from ._errors import InvalidArgumentError, check
from ._native import library
from ._values import LETTERS, check_shape, dtype_name, in_range, readable, size_of

_NARROW = (_native.TRIREME_DTYPE_F16, _native.TRIREME_DTYPE_BF16)


@dataclasses.dataclass(frozen=True)
class OffloadInfo:
    """Parameters, optimizer state or activations that lie in a file, of this rank."""

    path: str  #: The directory, as given.
    why_not_direct: str  #: What refused O_DIRECT; "" if it is in use.
    why_not_ring: str  #: What refused io_uring; "" if it is in use.
    file_bytes: int  #: What lies in the file; of a trainer, that a micro-batch writes and reads.
    resident_bytes: int  #: What stays in memory; of a trainer, what could not be written.
    buffer_bytes: int  #: Memory for what is on its way.
    block_bytes: int  #: The largest piece that is read or written at once.
    read_bytes: int  #: Asked of the file so far.
    written_bytes: int  #: Given to the file so far.
    waited_seconds: float  #: That calls waited for the disk.
    failed_writes: int  #: Blocks that could not be written; if they fit, they stay in memory.
    failed_offset: int  #: Where in the file the last one of them failed.
    failed_errno: int  #: And with which errno; 0 if none did.

    @property
    def direct(self) -> bool:
        """Whether the file is read and written past the system's cache."""
        return not self.why_not_direct

    @property
    def ring(self) -> bool:
        """Whether by io_uring; else by threads."""
        return not self.why_not_ring


def _offload_info(get: Callable[[Any], int]) -> OffloadInfo:
    found = _native.trireme_offload_info(struct_size=ctypes.sizeof(_native.trireme_offload_info))
    check(get(byref(found)))
    values = {field.name: getattr(found, field.name) for field in dataclasses.fields(OffloadInfo)}
    for name in ("path", "why_not_direct", "why_not_ring"):
        values[name] = values[name].decode()
    return OffloadInfo(**values)


class OffloadedState:
    """What an Optimizer tells about the state that lies in its file."""

    @property
    def _handle(self) -> int | None:
        raise NotImplementedError

    @property
    def offload_info(self) -> OffloadInfo:
        """How the state lies, and what the disk has done; needs `offload_path`."""
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
        return _cast(memoryview(memory), LETTERS[found.dtype])

    def write_range(self, index: int, data: Any) -> None:
        """Writes all elements of ranges()[index], wherever they lie, from as many of their type.

        Those of f16 and bf16 may come as their bits, as read_range() gives them. Parameters whose unit
        was gathered since the last step, load() or Model.set_parameters() are refused if a copy of
        them stays, which would hide what is written.
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
