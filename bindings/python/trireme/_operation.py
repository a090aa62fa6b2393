"""Shared parts of all operations of a communicator."""

from __future__ import annotations

import ctypes
import threading
from ctypes import byref, c_uint64
from typing import Any, Sequence, TypedDict

from . import _native
from ._device_memory import device_operand, failed, stream_number
from ._values import (
    ALGORITHMS,
    PRIORITIES,
    REDUCTIONS,
    Dtype,
    Name,
    dtype_number,
    dtype_name,
    nanoseconds,
    number_of,
    readable,
    writable,
)


class CallOptions(TypedDict, total=False):
    """Options that every operation takes by name."""

    timeout: float | None  #: Deadline in seconds from now; else the communicator's.
    scale: float | None  #: Factor of the reduction "scaled_sum".
    priority: Name  #: "high" puts a collective into a queue of its own; else "normal".
    reproducible: bool  #: Combine in rank order: the same bits by every backend and algorithm.
    algorithm: Name  #: How a collective is made of messages, for example "ring"; all name the same.
    wire_dtype: Dtype | None  #: "bf16" and the like: f32 is rounded to it before it travels.
    #: Memory of a device: the stream whose earlier work the operation follows. A cudaStream_t as a
    #: number, or a stream of torch, cupy, numba or cuda.core. Else that of the arrays, or the default.
    stream: Any


_OPTIONS_SIZE = ctypes.sizeof(_native.trireme_operation_options)

# The memory that the operations of an open batch() work on, by thread. Nearly always empty.
batched: dict[int, list[Any]] = {}


def call_options(options: CallOptions) -> Any:
    """None, which stands for all defaults, or a reference to the options of one call."""
    return _call_options(**options) if options else None


def _call_options(
    timeout: float | None = None,
    scale: float | None = None,
    priority: Name = "normal",
    reproducible: bool = False,
    algorithm: Name = "automatic",
    wire_dtype: Dtype | None = None,
    stream: Any = None,
    _flags: int = 0,
) -> Any:
    queue = _native.trireme_stream()
    if stream is not None:
        queue.kind = _native.TRIREME_DEVICE_CUDA
        queue.native = stream_number(stream)
    return byref(
        _native.trireme_operation_options(
            struct_size=_OPTIONS_SIZE,
            flags=_flags | (_native.TRIREME_OPERATION_FLAG_REPRODUCIBLE if reproducible else 0),
            timeout_ns=nanoseconds(timeout),
            stream=queue,
            scale=0.0 if scale is None else scale,
            priority=number_of(priority, PRIORITIES, "priority"),
            algorithm=number_of(algorithm, ALGORITHMS, "algorithm"),
            wire_dtype=0 if wire_dtype is None else dtype_number(wire_dtype, "wire_dtype"),
        )
    )


def flagged_options(options: CallOptions, flags: int) -> Any:
    """call_options() with flags that only some operations have."""
    return _call_options(_flags=flags, **options) if flags else call_options(options)


def finish(code: int, keep: Any) -> None:
    """Ends a call that blocks: raises its failure. Inside a batch() it has only begun."""
    if code:
        raise failed(code, keep)
    if batched:
        kept = batched.get(threading.get_ident())
        if kept is not None:
            kept.append(keep)


def reduction_code(reduction: Name) -> int:
    code = REDUCTIONS.get(reduction)  # type: ignore[arg-type]
    return number_of(reduction, REDUCTIONS, "reduction") if code is None else code


def _found(
    communicator: Any,
    data: Any,
    dtype: Dtype | None,
    what: str,
    options: CallOptions | None,
    writes: bool,
) -> tuple[Any, int | None, int, int] | None:
    # A communicator of the host does not ask whose memory an address is.
    if options is None or communicator._device is None:
        return None
    return device_operand(data, dtype, what, options, writes)


def given(
    communicator: Any, data: Any, dtype: Dtype | None, what: str, options: CallOptions | None
) -> tuple[Any, int | None, int, int]:
    """readable(), or memory of a device. The options of a call get the stream of its arrays."""
    try:
        return readable(data, dtype, what)
    except (TypeError, BufferError):
        found = _found(communicator, data, dtype, what, options, False)
        if found is None:
            raise
        return found


def taken(
    communicator: Any, data: Any, dtype: Dtype | None, what: str, options: CallOptions | None
) -> tuple[Any, int | None, int, int]:
    """writable(), or memory of a device."""
    try:
        return writable(data, dtype, what)
    except (TypeError, BufferError):
        found = _found(communicator, data, dtype, what, options, True)
        if found is None:
            raise
        return found


def both(
    communicator: Any,
    data: Any,
    out: Any,
    dtype: Dtype | None,
    options: CallOptions | None = None,
) -> tuple[Any, int | None, int, Any, int, int]:
    """Send and receive memory: views, then address and count of each, and their dtype."""
    view, address, count, code = given(communicator, data, dtype, "the send buffer", options)
    out_view, target, out_count, out_code = taken(
        communicator, out, dtype, "the receive buffer", options
    )
    if code != out_code:
        raise TypeError(
            f"the send buffer has elements of type {dtype_name(code)}, "
            f"the receive buffer of {dtype_name(out_code)}"
        )
    return (view, out_view), address, count, target, out_count, code


def same_shape(keep: tuple[Any, ...], count: int, out_count: int) -> None:
    """Of a buffer and its result: as many elements, in one dimension or in the same ones."""
    if count != out_count:
        raise ValueError(f"the send buffer has {count} elements, the receive buffer {out_count}")
    view, out = keep
    if view.ndim > 1 and out.ndim > 1 and view.itemsize == out.itemsize and view.shape != out.shape:
        raise ValueError(
            f"the send buffer has the shape {list(view.shape)}, the receive buffer "
            f"{list(out.shape)}; .reshape(-1) hands in elements as they lie"
        )


class Operations:
    """A communicator, as the classes below it see it."""

    _handle: int | None
    _rank: int
    _world_size: int
    _device: int | None = None  # of CUDA; None is the host

    def close(self) -> None:
        """Leaves the group."""
        raise NotImplementedError

    def _whole(self, whole: str, whole_count: int, block: str, count: int) -> None:
        """The library believes the lengths it is told, so they are compared here."""
        if whole_count != count * self._world_size:
            raise ValueError(
                f"the {whole} buffer has {whole_count} elements, not world size "
                f"{self._world_size} x {count}, the length of the {block} buffer"
            )

    def _numbers(self, counts: Sequence[int], whole: int | None) -> Any:
        """Counts of blocks, compared with the buffer of all blocks, where this rank has it."""
        if len(counts) != self._world_size:
            raise ValueError(f"{len(counts)} counts for world size {self._world_size}")
        for count in counts:
            if not 0 <= count < 1 << 64:
                raise ValueError(f"count {count} is negative or too large")
        if whole is not None and sum(counts) != whole:
            raise ValueError(
                f"the counts add up to {sum(counts)}, not to {whole}, the length of the buffer of "
                "all blocks"
            )
        return (c_uint64 * len(counts))(*counts)

    def _counts(self, counts: Sequence[int], whole: int | None, mine: int) -> Any:
        """The same, compared also with this rank's block."""
        numbers = self._numbers(counts, whole)
        if counts[self._rank] != mine:
            raise ValueError(
                f"the count of rank {self._rank} is {counts[self._rank]}, its buffer has {mine} "
                "elements"
            )
        return numbers
