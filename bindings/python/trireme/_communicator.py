"""A group of ranks and the operations that move bytes between them."""

from __future__ import annotations

import ctypes
import json
import weakref
from ctypes import byref, c_int32, c_uint64, c_void_p
from typing import Any, NamedTuple, Sequence

from . import _native, _request
from ._errors import InvalidArgumentError, check, last_failure
from ._native import library
from ._request import Request
from ._values import (
    FOREVER_NS,
    REDUCTIONS,
    Name,
    dtype_name,
    encoded,
    in_range,
    nanoseconds,
    number_of,
    readable,
    writable,
)

# Looked up once: an attribute of the library costs more than a global.
_all_reduce = library.trireme_all_reduce
_reduce_scatter = library.trireme_reduce_scatter
_all_gather = library.trireme_all_gather
_broadcast = library.trireme_broadcast
_barrier = library.trireme_barrier
_send = library.trireme_send
_receive = library.trireme_receive


class CommunicatorStatistics(NamedTuple):
    """What a communicator has done so far."""

    operations: int  #: Collectives and messages that ended, well or not.
    failures: int  #: Those that ended in a failure.
    bytes_sent: int  #: Bytes of this rank that peers were given to read.
    bytes_received: int  #: Bytes of peers that this rank read.


def _options(timeout: float | None, scale: float | None) -> Any:
    """None, which stands for all defaults, or a reference to the options of one call."""
    if timeout is None and scale is None:
        return None
    return byref(
        _native.trireme_operation_options(
            struct_size=ctypes.sizeof(_native.trireme_operation_options),
            timeout_ns=nanoseconds(timeout),
            scale=0.0 if scale is None else scale,
        )
    )


def _reduction(reduction: Name) -> int:
    code = REDUCTIONS.get(reduction)  # type: ignore[arg-type]
    return number_of(reduction, REDUCTIONS, "reduction") if code is None else code


def _same_dtype(send: int, receive: int) -> None:
    if send != receive:
        raise TypeError(
            f"the send buffer has elements of type {dtype_name(send)}, "
            f"the receive buffer of {dtype_name(receive)}"
        )


def _adopted(handle: c_void_p) -> Communicator | None:
    """The communicator of a handle that the library has just made; None for NULL."""
    if not handle.value:
        return None
    communicator = Communicator.__new__(Communicator)
    communicator._adopt(handle)
    return communicator


class Communicator:
    """A group of ranks, as one of them sees it. Use it in a `with` block, or call close().

    Every operation takes anything with the buffer protocol and works on that memory; the dtype
    follows from its elements, or is named with `dtype` where Python has none ("bf16", "f8e4m3",
    "f8e5m2"; also "bytes"). Operations are called by all ranks in the same order. Each `start_...`
    form returns a Request at once. `timeout` is in seconds.

    >>> import array
    >>> with Communicator(0, 1, "local://doctest") as group:
    ...     data = array.array("f", [1, 2])
    ...     group.all_reduce(data)
    ...     data.tolist()
    [1.0, 2.0]
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        rendezvous: str,
        *,
        backend: str | None = None,
        name: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Claims this rank's place; does not wait for the peers.

        `rendezvous` is "local://NAME" (threads of this process), "host://NAME" (processes of this
        host) or "env://" (see from_environment()).
        """
        options = _native.trireme_communicator_options(
            struct_size=ctypes.sizeof(_native.trireme_communicator_options),
            rank=in_range(rank, 31, "rank"),
            world_size=in_range(world_size, 31, "world_size"),
            rendezvous=encoded(rendezvous),
            backend=encoded(backend),
            name=encoded(name),
            timeout_ns=nanoseconds(timeout),
        )
        handle = c_void_p()
        check(library.trireme_communicator_create(byref(options), byref(handle)))
        self._adopt(handle)

    def _adopt(self, handle: c_void_p) -> None:
        """Becomes the object of a handle that the library has just made."""
        self._handle = handle.value
        # Runs once: at close(), when collected, or at the end of the process.
        self._close = weakref.finalize(self, library.trireme_communicator_destroy, self._handle)
        _request.communicators.add(self)
        number = c_int32()
        check(library.trireme_communicator_rank(self._handle, byref(number)))
        self._rank = number.value
        check(library.trireme_communicator_world_size(self._handle, byref(number)))
        self._world_size = number.value

    @classmethod
    def from_environment(
        cls,
        *,
        backend: str | None = None,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Communicator:
        """Joins the group that `trireme run` has named in the environment."""
        return cls(0, 0, "env://", backend=backend, name=name, timeout=timeout)

    # ---- the group -------------------------------------------------------------------------

    def close(self) -> None:
        """Leaves the group, without waiting. Operations that still run fail on every rank."""
        self._close()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return not self._close.alive

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<trireme.Communicator rank {self._rank} of {self._world_size}{state}>"

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._world_size

    @property
    def backend(self) -> str:
        """Which backend and transport carry the bytes, for example "local (processes)"."""
        return self._text(library.trireme_communicator_backend)

    @property
    def ranks(self) -> list[int]:
        """Each rank's number in the group that this one descends from."""
        numbers = (c_int32 * self._world_size)()
        check(library.trireme_communicator_ranks(self._handle, numbers, self._world_size))
        return list(numbers)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Waits until every rank has joined; a timeout names those that have not.

        Without `timeout` it waits as long as it takes.
        """
        time_ns = FOREVER_NS if timeout is None else nanoseconds(timeout)
        check(library.trireme_communicator_wait_ready(self._handle, time_ns))

    def abort(self, reason: str | None = None) -> None:
        """Makes the group fail on every rank, now. Any thread, any time."""
        check(library.trireme_communicator_abort(self._handle, encoded(reason)))

    def statistics(self) -> CommunicatorStatistics:
        """What the communicator has done so far."""
        found = _native.trireme_communicator_statistics(
            struct_size=ctypes.sizeof(_native.trireme_communicator_statistics)
        )
        check(library.trireme_communicator_get_statistics(self._handle, byref(found)))
        return CommunicatorStatistics(
            found.operations, found.failures, found.bytes_sent, found.bytes_received
        )

    def flight_record(self) -> list[dict[str, Any]]:
        """The last operations of this rank, oldest first."""
        lines = self._text(library.trireme_communicator_flight_record).splitlines()
        return [json.loads(line) for line in lines]

    def _text(self, function: Any) -> str:
        capacity = 256
        while True:  # the record may grow between two calls
            memory = ctypes.create_string_buffer(capacity)
            length = c_uint64()
            check(function(self._handle, memory, capacity, byref(length)))
            if length.value < capacity:
                return memory.value.decode()
            capacity = length.value + 4096

    # ---- groups of ranks of this group -----------------------------------------------------

    def split(
        self, color: int | None, key: int = 0, *, name: str | None = None, timeout: float | None = None
    ) -> Communicator | None:
        """Ranks of one color become a new group, in the order of `key` and then of rank.

        With color None this rank is in no group and gets None. Called by all ranks.
        """
        number = -1 if color is None else in_range(color, 31, "color")
        if color is not None and number < 0:
            raise InvalidArgumentError(
                f"color {color} is negative; None is no group",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        order = in_range(key, 31, "key")
        return self._child(library.trireme_communicator_split, (number, order), name, timeout)

    def subgroup(
        self, ranks: Sequence[int], *, name: str | None = None, timeout: float | None = None
    ) -> Communicator | None:
        """Ranks of a list become a new group in that order; None on ranks that are not in it.

        Called by all ranks, with the same list.
        """
        numbers = (c_int32 * len(ranks))(*(in_range(rank, 31, "rank") for rank in ranks))
        arguments = (numbers, len(ranks))
        return self._child(library.trireme_communicator_subgroup, arguments, name, timeout)

    def duplicate(self, *, name: str | None = None, timeout: float | None = None) -> Communicator:
        """A second group of the same ranks. Called by all ranks."""
        child = self._child(library.trireme_communicator_duplicate, (), name, timeout)
        assert child is not None
        return child

    def _child(
        self, function: Any, arguments: tuple[Any, ...], name: str | None, timeout: float | None
    ) -> Communicator | None:
        options = _native.trireme_group_options(
            struct_size=ctypes.sizeof(_native.trireme_group_options),
            name=encoded(name),
            timeout_ns=nanoseconds(timeout),
        )
        handle = c_void_p()
        check(function(self._handle, *arguments, byref(options), byref(handle)))
        return _adopted(handle)

    # ---- all-reduce ------------------------------------------------------------------------

    def _all_reduce(
        self, data: Any, out: Any, reduction: Name, dtype: Any, scale: Any, timeout: Any
    ) -> tuple[tuple[Any, ...], Any]:
        keep: Any
        if out is None:
            view, address, count, code = writable(data, dtype, "the buffer")
            target, keep = address, view
        else:
            view, address, count, code = readable(data, dtype, "the send buffer")
            out_view, target, out_count, out_code = writable(out, dtype, "the receive buffer")
            keep = (view, out_view)
            _same_dtype(code, out_code)
            if count != out_count:
                raise ValueError(
                    f"the send buffer has {count} elements, the receive buffer {out_count}"
                )
        options = _options(timeout, scale)
        return (self._handle, address, target, count, code, _reduction(reduction), options), keep

    def all_reduce(
        self,
        data: Any,
        out: Any = None,
        reduction: Name = "sum",
        *,
        dtype: Name | None = None,
        scale: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Reduces `data` over all ranks into `out`, or in place without `out`.

        `scale` is the factor of the reduction "scaled_sum".
        """
        arguments, _keep = self._all_reduce(data, out, reduction, dtype, scale, timeout)
        code = _all_reduce(*arguments)
        if code:
            raise last_failure(code)

    def start_all_reduce(
        self,
        data: Any,
        out: Any = None,
        reduction: Name = "sum",
        *,
        dtype: Name | None = None,
        scale: float | None = None,
        timeout: float | None = None,
    ) -> Request:
        """Starts all_reduce()."""
        arguments, keep = self._all_reduce(data, out, reduction, dtype, scale, timeout)
        return Request(self, library.trireme_all_reduce_start, arguments, keep)

    # ---- reduce-scatter --------------------------------------------------------------------

    def _reduce_scatter(
        self, data: Any, out: Any, reduction: Name, dtype: Any, scale: Any, timeout: Any
    ) -> tuple[tuple[Any, ...], Any]:
        view, address, count, code = readable(data, dtype, "the send buffer")
        out_view, target, out_count, out_code = writable(out, dtype, "the receive buffer")
        _same_dtype(code, out_code)
        if count != out_count * self._world_size:
            raise ValueError(
                f"the send buffer has {count} elements, not world size {self._world_size} x "
                f"{out_count}, the length of the receive buffer"
            )
        options = _options(timeout, scale)
        return (
            (self._handle, address, target, out_count, code, _reduction(reduction), options),
            (view, out_view),
        )

    def reduce_scatter(
        self,
        data: Any,
        out: Any,
        reduction: Name = "sum",
        *,
        dtype: Name | None = None,
        scale: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Reduces world size blocks of len(out) elements and gives rank r block r."""
        arguments, _keep = self._reduce_scatter(data, out, reduction, dtype, scale, timeout)
        code = _reduce_scatter(*arguments)
        if code:
            raise last_failure(code)

    def start_reduce_scatter(
        self,
        data: Any,
        out: Any,
        reduction: Name = "sum",
        *,
        dtype: Name | None = None,
        scale: float | None = None,
        timeout: float | None = None,
    ) -> Request:
        """Starts reduce_scatter()."""
        arguments, keep = self._reduce_scatter(data, out, reduction, dtype, scale, timeout)
        return Request(self, library.trireme_reduce_scatter_start, arguments, keep)

    def _counts(self, counts: Sequence[int], whole: int, mine: int) -> Any:
        """The counts, checked against the buffers: the library cannot see their lengths."""
        if len(counts) != self._world_size:
            raise ValueError(f"{len(counts)} counts for world size {self._world_size}")
        for count in counts:
            if not 0 <= count < 1 << 64:
                raise ValueError(f"count {count} is negative or too large")
        if sum(counts) != whole:
            raise ValueError(
                f"the counts add up to {sum(counts)}, not to {whole}, the length of the buffer of "
                "all blocks"
            )
        if counts[self._rank] != mine:
            raise ValueError(
                f"the count of rank {self._rank} is {counts[self._rank]}, its buffer has {mine} "
                "elements"
            )
        return (c_uint64 * len(counts))(*counts)

    def _reduce_scatter_v(
        self,
        data: Any,
        out: Any,
        counts: Any,
        reduction: Name,
        dtype: Any,
        scale: Any,
        timeout: Any,
    ) -> tuple[tuple[Any, ...], Any]:
        view, address, count, code = readable(data, dtype, "the send buffer")
        out_view, target, out_count, out_code = writable(out, dtype, "the receive buffer")
        _same_dtype(code, out_code)
        numbers = self._counts(counts, count, out_count)
        options = _options(timeout, scale)
        return (
            (self._handle, address, target, numbers, code, _reduction(reduction), options),
            (view, out_view),
        )

    def reduce_scatter_v(
        self,
        data: Any,
        out: Any,
        counts: Sequence[int],
        reduction: Name = "sum",
        *,
        dtype: Name | None = None,
        scale: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Reduces blocks of counts[0], counts[1], ... elements and gives rank r block r."""
        arguments, _keep = self._reduce_scatter_v(
            data, out, counts, reduction, dtype, scale, timeout
        )
        check(library.trireme_reduce_scatter_v(*arguments))

    def start_reduce_scatter_v(
        self,
        data: Any,
        out: Any,
        counts: Sequence[int],
        reduction: Name = "sum",
        *,
        dtype: Name | None = None,
        scale: float | None = None,
        timeout: float | None = None,
    ) -> Request:
        """Starts reduce_scatter_v()."""
        arguments, keep = self._reduce_scatter_v(
            data, out, counts, reduction, dtype, scale, timeout
        )
        return Request(self, library.trireme_reduce_scatter_v_start, arguments, keep)

    # ---- all-gather ------------------------------------------------------------------------

    def _all_gather(
        self, data: Any, out: Any, dtype: Any, timeout: Any
    ) -> tuple[tuple[Any, ...], Any]:
        view, address, count, code = readable(data, dtype, "the send buffer")
        out_view, target, out_count, out_code = writable(out, dtype, "the receive buffer")
        _same_dtype(code, out_code)
        if out_count != count * self._world_size:
            raise ValueError(
                f"the receive buffer has {out_count} elements, not world size {self._world_size} x "
                f"{count}, the length of the send buffer"
            )
        options = _options(timeout, None)
        return (self._handle, address, target, count, code, options), (view, out_view)

    def all_gather(
        self, data: Any, out: Any, *, dtype: Name | None = None, timeout: float | None = None
    ) -> None:
        """Gives every rank the `data` of all ranks in `out`, in rank order."""
        arguments, _keep = self._all_gather(data, out, dtype, timeout)
        code = _all_gather(*arguments)
        if code:
            raise last_failure(code)

    def start_all_gather(
        self, data: Any, out: Any, *, dtype: Name | None = None, timeout: float | None = None
    ) -> Request:
        """Starts all_gather()."""
        arguments, keep = self._all_gather(data, out, dtype, timeout)
        return Request(self, library.trireme_all_gather_start, arguments, keep)

    def _all_gather_v(
        self, data: Any, out: Any, counts: Any, dtype: Any, timeout: Any
    ) -> tuple[tuple[Any, ...], Any]:
        view, address, count, code = readable(data, dtype, "the send buffer")
        out_view, target, out_count, out_code = writable(out, dtype, "the receive buffer")
        _same_dtype(code, out_code)
        numbers = self._counts(counts, out_count, count)
        options = _options(timeout, None)
        return (self._handle, address, target, numbers, code, options), (view, out_view)

    def all_gather_v(
        self,
        data: Any,
        out: Any,
        counts: Sequence[int],
        *,
        dtype: Name | None = None,
        timeout: float | None = None,
    ) -> None:
        """all_gather() of blocks with counts[0], counts[1], ... elements."""
        arguments, _keep = self._all_gather_v(data, out, counts, dtype, timeout)
        check(library.trireme_all_gather_v(*arguments))

    def start_all_gather_v(
        self,
        data: Any,
        out: Any,
        counts: Sequence[int],
        *,
        dtype: Name | None = None,
        timeout: float | None = None,
    ) -> Request:
        """Starts all_gather_v()."""
        arguments, keep = self._all_gather_v(data, out, counts, dtype, timeout)
        return Request(self, library.trireme_all_gather_v_start, arguments, keep)

    # ---- broadcast and barrier -------------------------------------------------------------

    def _broadcast(
        self, data: Any, root: int, dtype: Any, timeout: Any
    ) -> tuple[tuple[Any, ...], Any]:
        find = readable if root == self._rank else writable
        view, address, count, code = find(data, dtype, "the buffer")
        options = _options(timeout, None)
        return (self._handle, address, count, code, in_range(root, 31, "root"), options), view

    def broadcast(
        self,
        data: Any,
        root: int = 0,
        *,
        dtype: Name | None = None,
        timeout: float | None = None,
    ) -> None:
        """Gives every rank the root's elements; the root's memory is only read."""
        arguments, _keep = self._broadcast(data, root, dtype, timeout)
        code = _broadcast(*arguments)
        if code:
            raise last_failure(code)

    def start_broadcast(
        self,
        data: Any,
        root: int = 0,
        *,
        dtype: Name | None = None,
        timeout: float | None = None,
    ) -> Request:
        """Starts broadcast()."""
        arguments, keep = self._broadcast(data, root, dtype, timeout)
        return Request(self, library.trireme_broadcast_start, arguments, keep)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Waits until every rank has called it."""
        code = _barrier(self._handle, _options(timeout, None))
        if code:
            raise last_failure(code)

    def start_barrier(self, *, timeout: float | None = None) -> Request:
        """Starts barrier()."""
        arguments = (self._handle, _options(timeout, None))
        return Request(self, library.trireme_barrier_start, arguments, None)

    # ---- messages --------------------------------------------------------------------------

    def _message(
        self, find: Any, data: Any, peer: int, tag: int, dtype: Any, timeout: Any, what: str
    ) -> tuple[tuple[Any, ...], Any]:
        view, address, count, code = find(data, dtype, what)
        in_range(peer, 31, "rank")
        in_range(tag, 64, "tag")
        return (self._handle, address, count, code, peer, tag, _options(timeout, None)), view

    def send(
        self,
        data: Any,
        to: int,
        tag: int = 0,
        *,
        dtype: Name | None = None,
        timeout: float | None = None,
    ) -> None:
        """Sends elements to one rank; done when the memory may be used again."""
        arguments, _keep = self._message(readable, data, to, tag, dtype, timeout, "the buffer")
        code = _send(*arguments)
        if code:
            raise last_failure(code)

    def start_send(
        self,
        data: Any,
        to: int,
        tag: int = 0,
        *,
        dtype: Name | None = None,
        timeout: float | None = None,
    ) -> Request:
        """Starts send()."""
        arguments, keep = self._message(readable, data, to, tag, dtype, timeout, "the buffer")
        return Request(self, library.trireme_send_start, arguments, keep)

    def receive(
        self,
        data: Any,
        source: int,
        tag: int = 0,
        *,
        dtype: Name | None = None,
        timeout: float | None = None,
    ) -> None:
        """Receives elements from rank `source`: as many as `data` has, of the same dtype."""
        arguments, _keep = self._message(writable, data, source, tag, dtype, timeout, "the buffer")
        code = _receive(*arguments)
        if code:
            raise last_failure(code)

    def start_receive(
        self,
        data: Any,
        source: int,
        tag: int = 0,
        *,
        dtype: Name | None = None,
        timeout: float | None = None,
    ) -> Request:
        """Starts receive()."""
        arguments, keep = self._message(writable, data, source, tag, dtype, timeout, "the buffer")
        return Request(self, library.trireme_receive_start, arguments, keep)
