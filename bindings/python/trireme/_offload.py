"""Optimizer state that lies in a file, and ranges of state wherever they lie."""

from __future__ import annotations

import ctypes
import dataclasses
from ctypes import byref, c_void_p
from typing import Any

from . import _native
from ._buffer import _cast
from ._errors import check
from ._native import library
from ._values import LETTERS, in_range, readable, size_of


@dataclasses.dataclass(frozen=True)
class OffloadInfo:
    """State of an optimizer that lies in a file, of this rank."""

    path: str  #: The directory, as given.
    why_not_direct: str  #: What refused O_DIRECT; "" if it is in use.
    why_not_ring: str  #: What refused io_uring; "" if it is in use.
    file_bytes: int  #: State that lies in the file.
    resident_bytes: int  #: State that stays in memory.
    buffer_bytes: int  #: Memory for what is on its way.
    block_bytes: int  #: The largest piece that is read or written at once.
    read_bytes: int  #: Asked of the file so far.
    written_bytes: int  #: Given to the file so far.
    waited_seconds: float  #: That calls waited for the disk.
    failed_writes: int  #: Blocks that could not be written, and stay in memory since.
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


class OffloadedState:
    """What an Optimizer tells about the state that lies in its file."""

    @property
    def _handle(self) -> int | None:
        raise NotImplementedError

    @property
    def offload_info(self) -> OffloadInfo:
        """How the state lies, and what the disk has done; needs `offload_path`."""
        found = _native.trireme_offload_info(
            struct_size=ctypes.sizeof(_native.trireme_offload_info)
        )
        check(library.trireme_optimizer_get_offload_info(self._handle, byref(found)))
        values = {
            field.name: getattr(found, field.name) for field in dataclasses.fields(OffloadInfo)
        }
        for name in ("path", "why_not_direct", "why_not_ring"):
            values[name] = values[name].decode()
        return OffloadInfo(**values)

    def read_range(self, index: int) -> memoryview[Any]:
        """A copy of the elements of ranges()[index], wherever they lie."""
        number = in_range(index, 64, "index")
        found = _native.trireme_state_range(struct_size=ctypes.sizeof(_native.trireme_state_range))
        check(library.trireme_optimizer_get_range(self._handle, number, byref(found)))
        memory = bytearray(found.count * size_of(found.dtype))
        address = c_void_p(_native.address_of(memoryview(memory)))
        check(library.trireme_optimizer_read_range(self._handle, number, address, len(memory)))
        return _cast(memoryview(memory), LETTERS[found.dtype])

    def write_range(self, index: int, data: Any) -> None:
        """Writes all elements of ranges()[index], wherever they lie."""
        view, address, _count, _code = readable(data, None, "data")
        number = in_range(index, 64, "index")
        check(library.trireme_optimizer_write_range(self._handle, number, address, view.nbytes))
