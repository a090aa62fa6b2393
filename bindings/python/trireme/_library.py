"""Version, abilities, log and failpoints of the library as a whole."""

from __future__ import annotations

import atexit
import ctypes
from ctypes import byref, c_uint64
from typing import Callable, Union

from . import _native
from ._abi.rule_options import RULES
from ._errors import UnsupportedError, check
from ._model import parse_strategy
from ._native import library
from ._values import (
    ALGORITHMS,
    DEVICES,
    LOG_LEVELS,
    OPERATIONS,
    REDUCTIONS,
    Dtype,
    Name,
    dtype_number,
    encoded,
    number_of,
)

LogListener = Callable[[str, str], object]

_LEVEL_NAMES = {number: name for name, number in LOG_LEVELS.items()}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def version() -> tuple[int, int, int]:
    """The library's version: major, minor, patch."""
    number: int = library.trireme_version()
    return number // 1000000, number // 1000 % 1000, number % 1000


def build_info() -> str:
    """How the library was built: version, compiler, backends, vector instructions in use."""
    return _text(library.trireme_build_info())


def status_name(code: int) -> str:
    """Names a status, for example "PEER_LOST"."""
    return _text(library.trireme_status_name(code))


def dtype_size(dtype: Dtype) -> int:
    """Bytes of one element; 0 for a number that is no dtype."""
    return int(library.trireme_dtype_bytes(dtype_number(dtype)))


def dtype_name(dtype: Dtype) -> str:
    """Names a dtype; "unknown" for a number that is none."""
    return _text(library.trireme_dtype_name(dtype_number(dtype)))


def reduction_name(reduction: Name) -> str:
    """Names a reduction; "unknown" for a number that is none."""
    return _text(library.trireme_reduction_name(number_of(reduction, REDUCTIONS, "reduction")))


def algorithm_name(algorithm: Name) -> str:
    """Names an algorithm of collectives; "unknown" for a number that is none."""
    return _text(library.trireme_algorithm_name(number_of(algorithm, ALGORITHMS, "algorithm")))


def strategy_name(strategy: Name) -> str:
    """The proper name of a strategy: "fsdp" is "zero3"; "unknown" for a number that is none."""
    return _text(library.trireme_strategy_name(parse_strategy(strategy)))


def optimizer_name(rule: Name) -> str:
    """Names an update rule; "unknown" for a number that is none."""
    return _text(library.trireme_rule_name(number_of(rule, RULES, "rule")))


def check_support(
    operation: Name | None = None,
    *,
    dtype: Dtype | None = None,
    reduction: Name | None = None,
    device: Name | None = None,
    backend: str | None = None,
) -> None:
    """Raises UnsupportedError, which says why, if the combination does not work."""
    query = _native.trireme_capability_query(
        struct_size=ctypes.sizeof(_native.trireme_capability_query),
        operation=0 if operation is None else number_of(operation, OPERATIONS, "operation"),
        dtype=0 if dtype is None else dtype_number(dtype),
        reduction=0 if reduction is None else number_of(reduction, REDUCTIONS, "reduction"),
        device=0 if device is None else number_of(device, DEVICES, "device"),
        backend=encoded(backend),
    )
    check(library.trireme_capability(byref(query)))


def supports(
    operation: Name | None = None,
    *,
    dtype: Dtype | None = None,
    reduction: Name | None = None,
    device: Name | None = None,
    backend: str | None = None,
) -> bool:
    """Whether a combination works; what is left out stands for "any"."""
    try:
        check_support(operation, dtype=dtype, reduction=reduction, device=device, backend=backend)
    except UnsupportedError:
        return False
    return True


# ---- log -----------------------------------------------------------------------------------

_listener: LogListener | None = None


def _heard(level: int, message: bytes, _: Union[int, None]) -> None:
    listener = _listener
    if listener is not None:
        listener(_LEVEL_NAMES.get(level, str(level)), _text(message))


_heard_callback = _native.trireme_log_callback(_heard)
_SILENCE = _native.trireme_log_callback()


def set_log_listener(listener: LogListener | None, level: Name = "info") -> None:
    """Sets a function that gets level and line of each message of the library; None: silence.

    The library calls it on any thread, and on several at once. It must not call the library.
    """
    global _listener
    if listener is None:
        check(library.trireme_set_log_callback(_SILENCE, 0, None))
        _listener = None
        return
    number = number_of(level, LOG_LEVELS, "level")
    before, _listener = _listener, listener
    try:
        check(library.trireme_set_log_callback(_heard_callback, number, None))
    except BaseException:
        _listener = before
        raise


# Threads of the library must not enter an interpreter that is gone.
atexit.register(set_log_listener, None)


# ---- failpoints ----------------------------------------------------------------------------


def failpoint_names() -> list[str]:
    """The places where tests can make a rank die, sleep or fail."""
    return [
        _text(library.trireme_failpoint_name(index))
        for index in range(library.trireme_failpoint_count())
    ]


def set_failpoints(text: str | None) -> None:
    """Sets what failpoints of this process do, for example "NAME=sleep(10)@2"; None clears all."""
    check(library.trireme_failpoint_set(encoded(text)))


def failpoint_hits(name: str) -> int:
    """How often a failpoint was visited since it was set."""
    hits = c_uint64()
    check(library.trireme_failpoint_get_hits(encoded(name), byref(hits)))
    return hits.value
