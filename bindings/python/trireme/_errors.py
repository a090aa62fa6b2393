"""Failures of the library as exceptions, one class a status."""

from __future__ import annotations

import builtins
import ctypes

from . import _native
from ._native import library

__all__ = [
    "TriremeError",
    "InvalidArgumentError",
    "InvalidHandleError",
    "InvalidStateError",
    "UnsupportedError",
    "OutOfMemoryError",
    "TimeoutError",
    "AbortedError",
    "PeerLostError",
    "MismatchError",
    "CorruptError",
    "AuthenticationError",
    "SystemCallError",
    "CallbackError",
    "CancelledError",
    "InternalError",
    "DeviceError",
]


class TriremeError(Exception):
    """A call of the library failed. Each status has a subclass of its own."""

    def __init__(
        self,
        message: str,
        code: int = _native.TRIREME_ERROR_INTERNAL,
        operation: str = "",
        sequence: int = 0,
        blamed: tuple[int, ...] = (),
        blamed_count: int = 0,
        system_error: int = 0,
        communicator: str = "",
        try_again: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message  #: One line that names value and rule, ranks and operation.
        self.code = code  #: The status, a negative number.
        self.operation = operation  #: "all_reduce"; empty if the failure is of no operation.
        self.sequence = sequence  #: Number of the operation in its communicator; 0 if none.
        self.blamed = blamed  #: The first ranks to blame, ascending.
        self.blamed_count = blamed_count  #: How many are to blame, also those left out above.
        self.system_error = system_error  #: errno, or 0.
        self.communicator = communicator  #: Name of the communicator; empty if none.
        #: Another rank was lost in shrink(): all ranks that got this error call shrink() again.
        self.try_again = try_again

    def __str__(self) -> str:
        return self.message

    def advise(self, hint: str) -> None:
        """Adds to the message what the binding knows of the way out."""
        self.message += hint
        self.args = (self.message,)

    @property
    def status(self) -> str:
        """Name of the status, for example "PEER_LOST"."""
        name: bytes = library.trireme_status_name(self.code)
        return name.decode()


class InvalidArgumentError(TriremeError, ValueError):
    """A value breaks a rule; the message names both."""


class InvalidHandleError(TriremeError, ValueError):
    """The object is closed, or was made before a fork."""


class InvalidStateError(TriremeError):
    """Right call, wrong moment."""


class UnsupportedError(TriremeError):
    """Known, but not in this build or backend."""


class OutOfMemoryError(TriremeError, MemoryError):
    """Host memory has run out."""


class TimeoutError(TriremeError, builtins.TimeoutError):
    """The deadline passed; `blamed` names who is missing."""


class AbortedError(TriremeError):
    """A rank called abort()."""


class PeerLostError(TriremeError):
    """A rank died or left; `blamed` names it."""


class MismatchError(TriremeError):
    """Ranks disagree about an operation or a model."""


class CorruptError(TriremeError):
    """Data read from a peer is damaged."""


class AuthenticationError(TriremeError):
    """A peer could not show that it belongs to the job."""


class SystemCallError(TriremeError, OSError):
    """The operating system refused; `system_error` is its errno."""


class CallbackError(TriremeError):
    """An update rule failed, on this rank or another."""


class CancelledError(TriremeError):
    """The request was cancelled before it began."""


class InternalError(TriremeError):
    """A defect of the library; please report the message."""


class DeviceError(TriremeError):
    """A device or its driver failed; the message has the driver's code."""


_CLASSES: dict[int, type[TriremeError]] = {
    _native.TRIREME_ERROR_INVALID_ARGUMENT: InvalidArgumentError,
    _native.TRIREME_ERROR_INVALID_HANDLE: InvalidHandleError,
    _native.TRIREME_ERROR_INVALID_STATE: InvalidStateError,
    _native.TRIREME_ERROR_UNSUPPORTED: UnsupportedError,
    _native.TRIREME_ERROR_OUT_OF_MEMORY: OutOfMemoryError,
    _native.TRIREME_ERROR_TIMEOUT: TimeoutError,
    _native.TRIREME_ERROR_ABORTED: AbortedError,
    _native.TRIREME_ERROR_PEER_LOST: PeerLostError,
    _native.TRIREME_ERROR_MISMATCH: MismatchError,
    _native.TRIREME_ERROR_CORRUPT: CorruptError,
    _native.TRIREME_ERROR_AUTHENTICATION: AuthenticationError,
    _native.TRIREME_ERROR_SYSTEM: SystemCallError,
    _native.TRIREME_ERROR_CALLBACK: CallbackError,
    _native.TRIREME_ERROR_CANCELLED: CancelledError,
    _native.TRIREME_ERROR_INTERNAL: InternalError,
    _native.TRIREME_ERROR_DEVICE: DeviceError,
}


def last_failure(code: int) -> TriremeError:
    """The exception for a call of this thread that has just answered `code`."""
    message: str = library.trireme_last_error().decode("utf-8", "replace")
    info = _native.trireme_error_info(struct_size=ctypes.sizeof(_native.trireme_error_info))
    library.trireme_last_error_info(ctypes.byref(info))
    kept = min(info.blamed_count, _native.TRIREME_MAX_BLAMED_RANKS)
    return _CLASSES.get(code, TriremeError)(
        message,
        code,
        info.operation.decode("utf-8", "replace"),
        info.sequence,
        tuple(info.blamed[:kept]),
        info.blamed_count,
        info.system_error,
        info.communicator.decode("utf-8", "replace"),
        bool(info.try_again),
    )


def caused(failure: TriremeError, error: BaseException | None) -> BaseException:
    """The exception of a failed call in which a function of the caller has raised `error`."""
    if error is None or isinstance(failure, CallbackError):
        return error or failure
    failure.__cause__ = error  # another rank has failed for another reason
    return failure


def check(code: int) -> None:
    """Raises unless the call that has just been made went well."""
    if code:
        raise last_failure(code)
