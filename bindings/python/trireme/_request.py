"""Operations that were started and not waited for."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import itertools
import os
import sys
import threading
import time
import weakref
from collections import deque
from ctypes import byref, c_int32, c_void_p
from types import FrameType
from typing import Any, Callable, Generator, NamedTuple, Sequence

from . import _native
from ._errors import TriremeError, check, last_failure
from ._native import library
from ._operation import Operations
from ._values import FOREVER_NS, dtype_name, nanoseconds

_destroy = library.trireme_request_destroy
_test = library.trireme_request_test
_wait = library.trireme_request_wait
_TIMEOUT = _native.TRIREME_ERROR_TIMEOUT

# Python hears Ctrl-C only between calls.
_SLICE_NS = 200_000_000

# Memory of operations that are not known to be done, by handle: the library may still use it,
# whatever the garbage collector thinks of the request.
_running: dict[int, Any] = {}
# Handles of requests that were collected before they were done.
_orphans: deque[int] = deque()
# Functions that wait for a completion.
_callbacks: dict[int, tuple[int, Callable[[TriremeError | None], object]]] = {}
_callback_numbers = itertools.count(1)


def _reap() -> None:
    """Lets go of the memory of collected requests that are done meanwhile; a few at a time."""
    for _ in range(min(len(_orphans), 4)):
        try:
            handle = _orphans.popleft()
        except IndexError:  # another thread was faster
            return
        done = c_int32(0)
        if _test(handle, byref(done)) or done.value:
            _running.pop(handle, None)
            _destroy(handle)
        else:
            _orphans.append(handle)


def _completed(status: int, number: int) -> None:
    entry = _callbacks.pop(number, None)
    if entry is None:  # of before a fork
        return
    handle, function = entry
    _running.pop(handle, None)
    try:
        function(last_failure(status) if status else None)
    except BaseException as problem:  # no caller is above to catch it
        arguments = (type(problem), problem, problem.__traceback__, None)
        threading.excepthook(threading.ExceptHookArgs(arguments))


_completed_callback = _native.trireme_completion_callback(_completed)


class MessageInfo(NamedTuple):
    """The message that a receive or a probe has found."""

    source: int  #: Rank that sent it.
    tag: int  #: Tag it was sent with.
    count: int  #: Elements.
    dtype: str  #: Their type.

    @classmethod
    def of(cls, found: Any) -> MessageInfo:
        """The message of a struct that the library has filled in."""
        return cls(found.source, found.tag, found.count, dtype_name(found.dtype))


class Request:
    """A started operation. Its buffers are kept alive until it is done.

    wait() ends when it is done; `await request` does the same without blocking an asyncio loop. A
    request that is dropped goes on to its end.
    """

    __slots__ = ("_handle", "_owner", "__weakref__")

    def __init__(self, owner: Operations, start: Any, arguments: Sequence[Any], keep: Any) -> None:
        self._handle = 0
        if _orphans:
            _reap()
        handle = c_void_p()
        code = start(*arguments, byref(handle))
        if code:
            raise last_failure(code)
        assert handle.value is not None
        _running[handle.value] = keep
        self._handle = handle.value
        self._owner = owner  # collected, it would leave the group

    def __del__(self) -> None:
        handle = self._handle
        if not handle:
            return
        if handle in _running:
            _orphans.append(handle)
        else:
            _destroy(handle)

    def test(self) -> bool:
        """Whether it is done. Raises what the operation failed with."""
        done = c_int32(0)
        code = _test(self._handle, byref(done))
        if code:
            failure = last_failure(code)
            _running.pop(self._handle, None)
            raise failure
        if done.value:
            _running.pop(self._handle, None)
        return bool(done.value)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it is done. Raises the failure of the operation.

        `timeout` is in seconds; without it the operation's own deadline ends the wait. A wait that
        times out leaves the operation running; test() raises only if the operation has failed.
        """
        end = FOREVER_NS if timeout is None else time.monotonic_ns() + nanoseconds(timeout)
        while True:
            left = max(0, end - time.monotonic_ns())
            code = _wait(self._handle, min(left, _SLICE_NS))
            if not code:
                _running.pop(self._handle, None)
                return
            failure = None
            if code != _TIMEOUT or left <= _SLICE_NS:
                failure = last_failure(code)
            # TIMEOUT says "still running" or "the operation ran out of time"; this tells which.
            if code == _TIMEOUT and self.test():
                return
            if failure is not None:
                if code != _TIMEOUT:
                    _running.pop(self._handle, None)
                raise failure

    def message(self) -> MessageInfo:
        """The message that a started receive or probe has found, once it has succeeded."""
        found = _native.trireme_message_info(
            struct_size=ctypes.sizeof(_native.trireme_message_info)
        )
        check(library.trireme_request_get_message(self._handle, byref(found)))
        return MessageInfo.of(found)

    def cancel(self) -> None:
        """Takes the operation back; InvalidStateError if it has begun or is done."""
        check(library.trireme_request_cancel(self._handle))

    def fileno(self) -> int:
        """A descriptor that becomes readable when it is done. It belongs to the request."""
        descriptor = c_int32(-1)
        check(library.trireme_request_get_fd(self._handle, byref(descriptor)))
        return descriptor.value

    def on_complete(self, function: Callable[[TriremeError | None], object]) -> None:
        """Calls `function` once when it is done, with None or with the failure.

        The call comes on a thread of the library, or at once on this one if it is done already.
        The function must not make a blocking call on the same communicator. If it raises, the
        exception goes to threading.excepthook. A request takes one function.
        """
        if not callable(function):
            raise TypeError(f"on_complete needs a function, not {type(function).__name__}")
        number = next(_callback_numbers)
        _callbacks[number] = (self._handle, function)
        code = library.trireme_request_on_complete(self._handle, _completed_callback, number)
        if code:
            failure = last_failure(code)
            _callbacks.pop(number, None)
            raise failure

    def __await__(self) -> Generator[Any, None, None]:
        return self._finish().__await__()

    async def _finish(self) -> None:
        if self.test():
            return
        loop = asyncio.get_running_loop()
        # One's own descriptor: two tasks may await the same request.
        descriptor = os.dup(self.fileno())
        try:
            while not self.test():
                ready: asyncio.Future[None] = loop.create_future()
                loop.add_reader(descriptor, _set_ready, ready)
                try:
                    await ready
                finally:
                    loop.remove_reader(descriptor)
        finally:
            os.close(descriptor)


def _set_ready(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def wait_any(requests: Sequence[Request], timeout: float | None = None) -> int:
    """Waits until one of several is done, well or not; answers the lowest index among those."""
    handles = (c_void_p * len(requests))(*(request._handle for request in requests))
    index = ctypes.c_uint64()
    end = FOREVER_NS if timeout is None else time.monotonic_ns() + nanoseconds(timeout)
    while True:
        left = max(0, end - time.monotonic_ns())
        code = library.trireme_request_wait_any(
            handles, len(requests), min(left, _SLICE_NS), byref(index)
        )
        if not code:
            return index.value
        if code != _TIMEOUT or left <= _SLICE_NS:
            raise last_failure(code)


def wait_all(requests: Sequence[Request], timeout: float | None = None) -> None:
    """Waits until all of several are done. Raises the exception of the first one that failed.

    A wait that times out leaves them running.
    """
    handles = (c_void_p * len(requests))(*(request._handle for request in requests))
    end = FOREVER_NS if timeout is None else time.monotonic_ns() + nanoseconds(timeout)
    while True:
        left = max(0, end - time.monotonic_ns())
        code = library.trireme_request_wait_all(handles, len(requests), min(left, _SLICE_NS))
        failure = last_failure(code) if code else None
        # TIMEOUT says "some still run" or "one of them ran out of time", which test() raises.
        if code in (0, _TIMEOUT) and all([request.test() for request in requests]):
            return
        if failure is not None and (code != _TIMEOUT or left <= _SLICE_NS):
            raise failure


# ---- the end of the process ----------------------------------------------------------------

communicators: weakref.WeakSet[Operations] = weakref.WeakSet()
# Functions that the library calls, or that have it call others.
called_back = {_completed.__code__}


def _inside() -> bool:
    """Whether the library calls, or is about to call, Python on another thread.

    Such a thread must get out before the interpreter goes: it would be ended in the middle of the
    library, which ends the process. It has its frame until it gives the interpreter lock back.
    """
    if _callbacks:
        return True
    for thread, current in sys._current_frames().items():
        frame: FrameType | None = current
        while frame is not None and thread != threading.get_ident():
            if frame.f_code in called_back:
                return True
            frame = frame.f_back
    return False


def _at_exit() -> None:
    """Ends what still runs while the interpreter can still be called and its memory still lives."""
    for communicator in list(communicators):
        communicator.close()
    end = time.monotonic_ns() + 5_000_000_000
    for handle, keep in list(_running.items()):
        left = max(0, end - time.monotonic_ns())
        done = c_int32(0)
        if _wait(handle, left) == _TIMEOUT and not _test(handle, byref(done)) and not done.value:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(keep))  # better leaked than written to
    while _inside() and time.monotonic_ns() < end:
        time.sleep(0.001)


def _after_fork() -> None:
    """In the child no thread of the library is left that would end what ran in the parent."""
    _running.clear()
    _orphans.clear()
    _callbacks.clear()
    communicators.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
