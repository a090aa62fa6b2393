"""A group of ranks and the operations that move bytes between them."""

from __future__ import annotations

import ctypes
import json
import weakref
from ctypes import byref, c_int32, c_uint64, c_void_p, pointer
from typing import Any, NamedTuple, Sequence

from . import _native, _request, _transport
from ._collectives import Collectives
from ._errors import InvalidArgumentError, check
from ._lists import Lists
from ._messages import Messages
from ._native import library
from ._rooted import RootedCollectives
from ._to_buffer import ToBuffer
from ._transport import Transport
from ._values import FOREVER_NS, encoded, in_range, nanoseconds


class CommunicatorStatistics(NamedTuple):
    """Counts of a communicator's work so far."""

    operations: int  #: Collectives and messages that ended, well or not.
    failures: int  #: Those that ended in a failure.
    sent_bytes: int  #: Bytes of this rank that peers were given to read.
    received_bytes: int  #: Bytes of peers that this rank read.
    sent_messages: int  #: Messages that this rank sent on connections; 0 in shared memory.


def adopted(handle: c_void_p, owner: object = None) -> Communicator | None:
    """The communicator of a handle as _adopt() takes it; None for NULL."""
    if not handle.value:
        return None
    communicator = Communicator.__new__(Communicator)
    communicator._adopt(handle, owner)
    return communicator


def group_options(name: str | None, timeout: float | None) -> Any:
    """The options of everything that makes a group of a group."""
    return _native.trireme_child_options(
        struct_size=ctypes.sizeof(_native.trireme_child_options),
        name=encoded(name),
        timeout_ns=nanoseconds(timeout),
    )


def _place(device: int | None) -> Any:
    if device is None:
        return _native.trireme_device()
    return _native.trireme_device(
        kind=_native.TRIREME_DEVICE_CUDA, index=in_range(device, 31, "device")
    )


class Communicator(Collectives, RootedCollectives, Messages, Lists, ToBuffer):
    """A group of ranks, as one of them sees it. Use it in a `with` block, or call close().

    Every operation takes anything with the buffer protocol and works on that memory; the dtype
    follows from its elements. `dtype` names it where Python has none: "bf16", "f8e4m3", "f8e5m2",
    and also "bytes". All ranks call the collectives in the same order. Each `start_...` form
    returns a Request at once.

    `**options` may name `timeout`, in seconds. Collectives also take:

    - `scale`: the factor of the reduction "scaled_sum".
    - `priority`: operations with "high" have a queue of their own.
    - `reproducible`: ranks are combined in rank order.
    - `algorithm`: "ring" or another name.
    - `wire_dtype`: f32 elements are rounded to this type before they travel.

    >>> import array
    >>> with Communicator(0, 1, "local://doctest") as group:
    ...     data = array.array("f", [1, 2])
    ...     group.all_reduce(data)
    ...     data.tolist()
    [1.0, 2.0]
    """

    _device: int | None = None  # also of those that a mesh hands out

    def __init__(
        self,
        rank: int,
        world_size: int,
        rendezvous: str,
        *,
        backend: str | None = None,
        name: str | None = None,
        timeout: float | None = None,
        transport: Transport | None = None,
        stall_warning: float | None = None,
        device: int | None = None,
    ) -> None:
        """Claims this rank's place; does not wait for the peers.

        `device` is the number of a CUDA device. Operations then take memory of that device, by
        DLPack or `__cuda_array_interface__`, and pinned memory: docs/gpus.md.

        The log listener hears of a wait for a peer that lasts `stall_warning` seconds, and again
        whenever the time has doubled; None is 10 seconds, math.inf is never.

        `rendezvous` is one of these texts:

        - "local://NAME": ranks are threads of this process.
        - "host://NAME": ranks are processes of this host.
        - "tcp://ADDRESS:PORT": ranks lie on several hosts, and rank 0 listens there.
          TRIREME_TOKEN_FILE names the job's secret; see docs/several-hosts.md.
        - "mpi://": all ranks of mpirun. `rank` and `world_size` are 0, or the numbers of MPI.
        - "transport://NAME": `transport` carries the bytes.
        - "env://": see from_environment().
        """
        options = _native.trireme_communicator_options(
            struct_size=ctypes.sizeof(_native.trireme_communicator_options),
            rank=in_range(rank, 31, "rank"),
            world_size=in_range(world_size, 31, "world_size"),
            rendezvous=encoded(rendezvous),
            backend=encoded(backend),
            name=encoded(name),
            timeout_ns=nanoseconds(timeout),
            stall_warning_ns=nanoseconds(stall_warning, "stall_warning"),
            device=_place(device),
        )
        self._device = device
        handle = c_void_p()
        if transport is None:
            check(library.trireme_communicator_create(byref(options), byref(handle)))
            self._adopt(handle)
            return
        number, struct = _transport.keep(transport)
        options.transport = pointer(struct)
        try:
            check(library.trireme_communicator_create(byref(options), byref(handle)))
        except BaseException:
            _transport.forget(number)
            raise
        self._adopt(handle)
        _transport.belongs_to(number, self)

    def _adopt(self, handle: c_void_p, owner: object = None) -> None:
        """Becomes the object of a handle that the library has just made, or that `owner` owns."""
        self._handle = handle.value
        self._owner = owner
        if owner is None:
            # Runs once: at close(), when collected, or at the end of the process.
            self._close = weakref.finalize(self, library.trireme_communicator_destroy, self._handle)
        else:
            self._close = weakref.finalize(self, int)  # the owner does it
        _request.communicators.add(self)
        number = c_int32()
        check(library.trireme_communicator_get_rank(self._handle, byref(number)))
        self._rank = number.value
        check(library.trireme_communicator_get_world_size(self._handle, byref(number)))
        self._world_size = number.value

    @classmethod
    def from_environment(
        cls,
        *,
        backend: str | None = None,
        name: str | None = None,
        timeout: float | None = None,
        stall_warning: float | None = None,
        device: int | None = None,
    ) -> Communicator:
        """Joins the group that `trireme run` has named in the environment."""
        return cls(
            0,
            0,
            "env://",
            backend=backend,
            name=name,
            timeout=timeout,
            stall_warning=stall_warning,
            device=device,
        )

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
    def device(self) -> int | None:
        """Number of the CUDA device whose memory the operations take; None is the host."""
        return self._device

    @property
    def backend(self) -> str:
        """The backend and the transport that carry the bytes, for example "local (processes)"."""
        return self._text(library.trireme_communicator_get_backend)

    @property
    def ranks(self) -> list[int]:
        """Each rank's number in the group that this one descends from."""
        numbers = (c_int32 * self._world_size)()
        check(
            library.trireme_communicator_get_original_ranks(self._handle, numbers, self._world_size)
        )
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
        """Counts of the communicator's work so far."""
        found = _native.trireme_communicator_statistics(
            struct_size=ctypes.sizeof(_native.trireme_communicator_statistics)
        )
        check(library.trireme_communicator_get_statistics(self._handle, byref(found)))
        return CommunicatorStatistics(
            found.operations,
            found.failures,
            found.sent_bytes,
            found.received_bytes,
            found.sent_messages,
        )

    def flight_record(self) -> list[dict[str, Any]]:
        """The last operations of this rank, oldest first."""
        lines = self._text(library.trireme_communicator_get_flight_record).splitlines()
        return [json.loads(line) for line in lines]

    def last_calls(self) -> list[dict[str, Any]]:
        """The last calls of each rank, as far as this rank can see them; also after a failure."""
        lines = self._text(library.trireme_communicator_get_last_calls).splitlines()
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
        self,
        color: int | None,
        key: int = 0,
        *,
        name: str | None = None,
        timeout: float | None = None,
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

    # ---- after a loss: also on a group that has failed ---------------------------------------

    def agree(self, flags: int, *, timeout: float | None = None) -> int:
        """The bitwise and of the flags of all ranks that are there, the same on each of them.

        Goes on without ranks that died, left, or are blamed by the group's failure.
        """
        value = c_uint64(in_range(flags, 64, "flags"))
        time_ns = nanoseconds(timeout)
        check(library.trireme_communicator_agree(self._handle, byref(value), time_ns))
        return value.value

    def shrink(self, *, name: str | None = None, timeout: float | None = None) -> Communicator:
        """A new group of the ranks that are there. After a PeerLostError it may be called again."""
        child = self._child(library.trireme_communicator_shrink, (), name, timeout)
        assert child is not None
        return child

    def _child(
        self, function: Any, arguments: tuple[Any, ...], name: str | None, timeout: float | None
    ) -> Communicator | None:
        options = group_options(name, timeout)
        handle = c_void_p()
        check(function(self._handle, *arguments, byref(options), byref(handle)))
        child = adopted(handle)
        if child is not None:
            child._device = self._device
        return child
