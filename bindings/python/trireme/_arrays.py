"""Memory of the caller that must have one dtype and one length."""

from __future__ import annotations

from typing import Any, Callable

from . import _native
from ._errors import InvalidArgumentError
from ._values import dtype_name, readable, wrong_dtype


def exactly(
    open_memory: Callable[..., Any], data: Any, dtype: int, count: int, what: str
) -> tuple[memoryview, int | None]:
    """The memory and its address, if it is of that dtype and length."""
    try:
        letter = memoryview(data).format[-1:]
    except TypeError:
        letter = "B"  # a Buffer, or no memory at all
    # Memory of bytes, or of 16 bits, cannot tell its dtype.
    view, address, found, code = open_memory(data, dtype if letter in "BHhbc" else None, what)
    if code != dtype:
        raise TypeError(
            f"{what} has elements of type {dtype_name(code)}, not of "
            f"{dtype_name(dtype)}{wrong_dtype(code, dtype)}"
        )
    if found != count:
        raise InvalidArgumentError(
            f"{what} has {found} elements, but must have {count}",
            _native.TRIREME_ERROR_INVALID_ARGUMENT,
        )
    return view, address


def elements(data: Any, dtype: int, what: str) -> int:
    """The elements of that dtype in memory; bytes are counted by their number."""
    try:
        view = memoryview(data)
    except TypeError:
        view = getattr(data, "memory", None)  # a Buffer, or no memory at all
    if isinstance(view, memoryview) and view.itemsize > 1:
        return readable(data, None, what)[2]
    return readable(data, dtype, what)[2]


def bytes_of_flags(data: Any) -> Any:
    """Memory of bool as its bytes; anything else as it is."""
    try:
        view = memoryview(data)
    except TypeError:
        return data
    if view.format != "?" or not view.c_contiguous:
        return data
    return view.cast("B") if view.nbytes else b""
