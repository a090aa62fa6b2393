"""Groups whose bytes functions of the program carry."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import threading
import time
import weakref
from ctypes import c_void_p
from typing import Any, Optional, Protocol, Tuple

from . import _native
from ._fields import function
from ._operation import Operations


class Transport(Protocol):
    """Carries frames between the ranks of one "transport://NAME" group.

    It delivers every frame whole and once, and frames from one rank to another in the order in
    which they were sent. One thread of the library calls `send` and another one calls `receive`;
    neither may use the group. If one of them raises, the group ends with CallbackError on all
    ranks.

    The attribute `frame_bytes`, if there is one, limits the length of frames. It is at least 1,024;
    without it the limit is 65,536. The library calls the method `released()`, if there is one, when
    it will not call the transport again.
    """

    def send(self, to: int, frame: bytes, timeout: float) -> bool:
        """Takes a frame for a rank; False if it cannot within `timeout` seconds."""

    def receive(self, timeout: float) -> Optional[Tuple[int, bytes]]:
        """The next frame and the rank that sent it; None if none comes within `timeout` seconds."""


class _Carried:
    """One transport that the library may call."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.communicator: weakref.ref[Operations] | None = None


_carried: dict[int, _Carried] = {}
_numbers = itertools.count(1)
_released = threading.Condition()
# How long the end of the process waits for frames that are on their way.
_LAST_SECONDS = 6.0


def _report(problem: BaseException) -> int:
    """Hands an exception to threading.excepthook: no caller is above to catch it."""
    arguments = (type(problem), problem, problem.__traceback__, None)
    threading.excepthook(threading.ExceptHookArgs(arguments))
    return _native.TRIREME_ERROR_CALLBACK


def _send(number: int, to: int, data: int, size: int, timeout_ns: int) -> int:
    try:
        frame = ctypes.string_at(data, size)
        taken = _carried[number].transport.send(to, frame, timeout_ns / 1e9)
        return _native.TRIREME_OK if taken else _native.TRIREME_ERROR_TIMEOUT
    except BaseException as problem:
        return _report(problem)


def _receive(
    number: int, out_from: Any, data: int, capacity: int, out_bytes: Any, timeout_ns: int
) -> int:
    try:
        came = _carried[number].transport.receive(timeout_ns / 1e9)
        if came is None:
            return _native.TRIREME_ERROR_TIMEOUT
        sender, frame = came
        # A frame that is too long is told by its length alone.
        view = memoryview(frame).cast("B")
        if view.nbytes <= capacity:
            ctypes.memmove(data, bytes(view), view.nbytes)
        out_from[0] = sender
        out_bytes[0] = view.nbytes
        return _native.TRIREME_OK
    except BaseException as problem:
        return _report(problem)


def _released_by_library(number: int) -> None:
    carried = _carried.get(number)
    try:
        released = getattr(carried.transport, "released", None) if carried else None
        if released is not None:
            released()
    except BaseException as problem:
        _report(problem)
    with _released:
        _carried.pop(number, None)
        _released.notify_all()


_send_callback = _native.trireme_transport_send_callback(_send)
_receive_callback = _native.trireme_transport_receive_callback(_receive)
_released_callback = _native.trireme_transport_released_callback(_released_by_library)


def keep(transport: Transport) -> tuple[int, _native.trireme_transport]:
    """A number for the transport, which lives until the library has released it, and its struct."""
    for name in ("send", "receive"):
        function(getattr(transport, name, None), f"transport.{name}")
    number = next(_numbers)
    _carried[number] = _Carried(transport)
    struct = _native.trireme_transport(
        struct_size=ctypes.sizeof(_native.trireme_transport),
        user_data=c_void_p(number),
        maximum_frame_bytes=getattr(transport, "frame_bytes", 0),
        send=_send_callback,
        receive=_receive_callback,
        released=_released_callback,
    )
    return number, struct


def forget(number: int) -> None:
    """Drops a transport that the library has not kept."""
    _carried.pop(number, None)


def belongs_to(number: int, communicator: Operations) -> None:
    """Remembers the communicator of a transport: the end of the process closes it."""
    carried = _carried.get(number)
    if carried is not None:
        carried.communicator = weakref.ref(communicator)


def _at_exit() -> None:
    """Closes all groups, so that no thread of the library enters an interpreter that is gone."""
    for carried in list(_carried.values()):
        communicator = carried.communicator() if carried.communicator else None
        if communicator is not None:
            communicator.close()
    until = time.monotonic() + _LAST_SECONDS
    with _released:
        while _carried and time.monotonic() < until:
            _released.wait(until - time.monotonic())


atexit.register(_at_exit)
