"""Devices of this process, and whose memory an address is."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int32, c_uint64, c_void_p
from dataclasses import dataclass

from . import _native
from ._errors import check
from ._native import library
from ._values import DEVICES, Name, in_range, number_of

KINDS = {
    "default": _native.TRIREME_MEMORY_KIND_DEFAULT,
    "host": _native.TRIREME_MEMORY_KIND_HOST,
    "pinned": _native.TRIREME_MEMORY_KIND_PINNED,
    "device": _native.TRIREME_MEMORY_KIND_DEVICE,
    "managed": _native.TRIREME_MEMORY_KIND_MANAGED,
}
_NAMES = {number: name for name, number in KINDS.items()}


@dataclass(frozen=True)
class DeviceInfo:
    """One CUDA device."""

    name: str  #: The driver's name for it.
    capability: tuple[int, int]  #: Compute capability, for example (9, 0).
    multiprocessors: int
    memory_bytes: int  #: Free or not.
    driver_version: int  #: The newest CUDA that the driver runs: 13000 is 13.0.
    uuid: str  #: Without the "GPU-" or "MIG-" of nvidia-smi.
    bus_id: str  #: Its place in the host, for example "0000:1b:00.0".


@dataclass(frozen=True)
class MemoryInfo:
    """Whose memory an address is."""

    kind: str  #: "host", "pinned", "device" or "managed".
    device: int | None  #: Number of the CUDA device; None for the host.
    first: int  #: Begin of the allocation; 0 for "host".
    bytes: int  #: Of the allocation; 0 for "host".


def device_count(kind: Name = "cuda") -> int:
    """Devices that this process sees. Without a driver it raises UnsupportedError, which tells
    every file tried."""
    count = c_int32()
    check(library.trireme_device_count(number_of(kind, DEVICES, "kind"), byref(count)))
    return count.value


def device_info(index: int) -> DeviceInfo:
    """Describes a CUDA device."""
    info = _native.trireme_device_info(struct_size=ctypes.sizeof(_native.trireme_device_info))
    check(library.trireme_device_get_info(in_range(index, 31, "index"), byref(info)))
    return DeviceInfo(
        info.name.decode("utf-8", "replace"),
        (info.capability_major, info.capability_minor),
        info.multiprocessors,
        info.memory_bytes,
        info.driver_version,
        info.uuid.decode(),
        info.bus_id.decode(),
    )


def device_memory(index: int) -> tuple[int, int]:
    """Bytes of a CUDA device that are free now, and all that its driver can give away."""
    free, total = c_uint64(), c_uint64()
    number = in_range(index, 31, "index")
    check(library.trireme_device_get_memory(number, byref(free), byref(total)))
    return free.value, total.value


def device_report() -> str:
    """Tells what was found of CUDA and NCCL, a line each, with every file tried."""
    capacity = 4096
    while True:  # a device's line may be longer the next time
        memory = ctypes.create_string_buffer(capacity)
        length = c_uint64()
        check(library.trireme_device_report(memory, capacity, byref(length)))
        if length.value < capacity:
            return memory.value.decode("utf-8", "replace")
        capacity = length.value + 4096


def memory_info(address: int) -> MemoryInfo:
    """Tells whose memory an address is. It reads nothing there."""
    info = _native.trireme_memory_info(struct_size=ctypes.sizeof(_native.trireme_memory_info))
    pointer = c_void_p(in_range(address, 64, "address"))
    check(library.trireme_memory_get_info(pointer, byref(info)))
    on_device = info.device.kind == _native.TRIREME_DEVICE_CUDA
    return MemoryInfo(
        _NAMES.get(info.kind, str(info.kind)),
        info.device.index if on_device else None,
        info.first or 0,
        info.bytes,
    )
