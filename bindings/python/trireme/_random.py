"""Random numbers that an element's place decides."""

from __future__ import annotations

import ctypes
from ctypes import byref
from typing import Any

from . import _native
from ._errors import InvalidArgumentError, check
from ._native import library
from ._values import Dtype, dtype_name, in_range, readable, writable


def _options(
    view: memoryview,
    count: int,
    seed: int,
    draw: int,
    first_row: int,
    first_column: int,
    columns: int | None,
    all_columns: int | None,
) -> Any:
    if columns is None:
        # The last extent; its elements may be bytes of larger ones.
        rows = 1
        for extent in view.shape[:-1] if view.ndim else ():
            rows *= extent
        columns = count // rows if rows else 0
        whole = f"memory of the shape {tuple(view.shape)}"
    else:
        columns = in_range(columns, 64, "columns")
        if count and not columns:
            raise InvalidArgumentError(
                f"columns is 0, but there are {count} elements",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        rows = count // columns if columns else 0
        whole = f"{columns} columns"
    if rows * columns != count:
        raise InvalidArgumentError(
            f"{count} elements are no whole rows of {whole}",
            _native.TRIREME_ERROR_INVALID_ARGUMENT,
        )
    return _native.trireme_random_options(
        struct_size=ctypes.sizeof(_native.trireme_random_options),
        seed=in_range(seed, 64, "seed"),
        draw=in_range(draw, 64, "draw"),
        first_row=in_range(first_row, 64, "first_row"),
        rows=rows,
        first_column=in_range(first_column, 64, "first_column"),
        columns=columns,
        all_columns=columns if all_columns is None else in_range(all_columns, 64, "all_columns"),
    )


def random_uniform(
    out: Any,
    *,
    seed: int = 0,
    draw: int = 0,
    first_row: int = 0,
    first_column: int = 0,
    columns: int | None = None,
    all_columns: int | None = None,
    dtype: Dtype | None = None,
) -> None:
    """Fills `out` with random numbers from 0 on and below 1; see random.h.

    `out` is a part of a larger array of rows and columns, or all of it. An element's number depends
    on `seed`, `draw` and its place in the whole array alone. The part begins at `first_row` and
    `first_column` of the whole, which has `all_columns` columns; without it the part has them all.
    The last extent of `out` is its columns, unless `columns` says otherwise. Each layer of each
    step takes a `draw` of its own. `dtype` names bf16, which shows as 16-bit integers.

    >>> import array, trireme
    >>> whole, right = array.array("f", [0] * 12), array.array("f", [0] * 6)
    >>> trireme.random_uniform(whole, columns=6, seed=1)
    >>> trireme.random_uniform(right, columns=3, seed=1, first_column=3, all_columns=6)
    >>> whole[3:6] + whole[9:12] == right
    True
    """
    view, address, count, code = writable(out, dtype, "out")
    options = _options(view, count, seed, draw, first_row, first_column, columns, all_columns)
    check(library.trireme_random_uniform(byref(options), address, code))


def random_dropout(
    data: Any,
    rate: float,
    *,
    out: Any = None,
    seed: int = 0,
    draw: int = 0,
    first_row: int = 0,
    first_column: int = 0,
    columns: int | None = None,
    all_columns: int | None = None,
    dtype: Dtype | None = None,
) -> None:
    """Sets elements to 0 with the probability `rate` and multiplies the others.

    The probability is `rate`, rounded down to a multiple of 2^-32; the factor is
    1 / (1 - the probability). The result replaces `data`, or goes to `out`. Backward is the same
    call on the gradient, so there is no mask to keep. The other keywords are those of
    random_uniform().

    >>> import array, trireme
    >>> values = array.array("f", [1] * 6)
    >>> trireme.random_dropout(values, 0.5, seed=3)
    >>> set(values) == {0.0, 2.0}
    True
    """
    if out is None:
        source, address, count, code = writable(data, dtype, "data")
        target, to = source, address
    else:
        source, address, count, code = readable(data, dtype, "data")
        target, to, given, other = writable(out, dtype, "out")
        if (given, other) != (count, code):
            raise InvalidArgumentError(
                f"out has {given} elements of {dtype_name(other)}, but data has {count} of "
                f"{dtype_name(code)}",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
    options = _options(source, count, seed, draw, first_row, first_column, columns, all_columns)
    check(library.trireme_random_dropout(byref(options), float(rate), address, to, code))
    del source, target  # until here they have kept the memory alive
