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
from ._operation import Operations


class Transport(Protocol):
    """What carries frames between the ranks of one "host-transport://NAME" group.

    Every frame arrives whole, once, and in the order in which it was sent from one rank to another.
    `send` is called by one thread of the library and `receive` by another one; neither may use the
    group. What they raise ends the group with CallbackError on all ranks.

    An attribute `frame_bytes` limits the length of frames (at least 1,024; else 65,536), and a
    method `released()` hears that the library will not call again.
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
    """For what nobody above can catch."""
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


_send_callback = _native.trireme_transport_send(_send)
_receive_callback = _native.trireme_transport_receive(_receive)
_released_callback = _native.trireme_transport_released(_released_by_library)


def keep(transport: Transport) -> tuple[int, _native.trireme_transport]:
    """A number for the transport, which lives until the library has released it, and its struct."""
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
    """The library has not kept it."""
    _carried.pop(number, None)


def belongs_to(number: int, communicator: Operations) -> None:
    """Says who is closed at the end of the process."""
    carried = _carried.get(number)
    if carried is not None:
        carried.communicator = weakref.ref(communicator)


def _at_exit() -> None:
    """Threads of the library must not enter an interpreter that is gone."""
    for carried in list(_carried.values()):
        communicator = carried.communicator() if carried.communicator else None
        if communicator is not None:
            communicator.close()
    until = time.monotonic() + _LAST_SECONDS
    with _released:
        while _carried and time.monotonic() < until:
            _released.wait(until - time.monotonic())


atexit.register(_at_exit)
