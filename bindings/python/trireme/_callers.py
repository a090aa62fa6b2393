"""Functions of the caller in place of the library's: matrix products and activations."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from typing import Any, Callable

from . import _native
from ._buffer import view_of
from ._values import LETTERS, dtype_name, size_of


@dataclasses.dataclass(frozen=True)
class Product:
    """One matrix product: result = left * right, or result + left * right with `add`.

    Matrices are row-major, with a step from row to row in elements; a transposed one lies in memory
    as its transpose. Memory is flat memoryviews, good until the function returns: element (i, j) of
    a matrix as it lies there is view[i * step + j]. f16 and bf16 show as 16-bit integers, and their
    results are f32. `result` alone can be written.
    """

    dtype: str  #: Type of `left` and `right`.
    rows: int  #: Rows of `left` and `result`.
    columns: int  #: Columns of `right` and `result`.
    depth: int  #: Columns of `left` and rows of `right`.
    left: memoryview[float]
    left_step: int
    left_transposed: bool
    right: memoryview[float]
    right_step: int
    right_transposed: bool
    result: memoryview[float]
    result_step: int
    add: bool  #: Without it the old result may be NaN.


@dataclasses.dataclass(frozen=True)
class ActivationCall:
    """One direction of an activation on this rank's columns, for a caller's own function.

    Arrays are flat memoryviews of rows, good until the function returns. `result` alone can be
    written, and the function writes all of it. f16 and bf16 show as 16-bit integers.
    """

    dtype: str  #: Type of all arrays.
    rows: int  #: Rows; may be 0.
    columns: int  #: Hidden units of this rank; may be 0.
    input_columns: int  #: `columns`, or twice as many with `gated`: all gates, then all values.
    first_column: int  #: Number of the first column among those of all ranks.
    input: memoryview[float]  #: rows * input_columns elements.
    output_gradient: memoryview[float] | None  #: Backward: rows * columns elements.
    result: memoryview[float]  #: Forward: the output. Backward: the gradient of `input`.


ProductFunction = Callable[[Product], object]
ActivationFunction = Callable[[ActivationCall], object]


class Caller:
    """Functions of the caller, and what one of them raised. Its object keeps it alive."""

    def __init__(self, **functions: Callable[[Any], object]) -> None:
        self.functions = functions
        self.error: BaseException | None = None
        self.number = next(_numbers)
        _callers[self.number] = self

    def take_error(self) -> BaseException | None:
        """The exception that a function raised; this forgets it."""
        error, self.error = self.error, None
        return error


_numbers = itertools.count(1)
_callers: weakref.WeakValueDictionary[int, Caller] = weakref.WeakValueDictionary()


def _run(number: int, name: str, make: Callable[[Any], object], raw: Any) -> int:
    caller = _callers.get(number)
    if caller is None:
        return 1
    try:
        call = make(raw.contents)
        caller.functions[name](call)
        for array in vars(call).values():
            if isinstance(array, memoryview):
                array.release()  # the memory is the library's again; what is used raises here
        return 0
    except BaseException as error:  # nothing may go through the library; the pass raises it
        caller.error = error
        return 1


def _view(address: int | None, count: int, dtype: int, written: bool = False) -> Any:
    view = view_of(address, count, size_of(dtype), LETTERS[dtype], None)
    return view if written else view.toreadonly()


def _product(raw: Any) -> Product:
    def view(address: int, rows: int, columns: int, step: int, dtype: int, written: bool) -> Any:
        return _view(address, (rows - 1) * step + columns, dtype, written)

    narrow = raw.dtype in (_native.TRIREME_DTYPE_F16, _native.TRIREME_DTYPE_BF16)
    left = (raw.depth, raw.rows) if raw.left_transposed else (raw.rows, raw.depth)
    right = (raw.columns, raw.depth) if raw.right_transposed else (raw.depth, raw.columns)
    wide = _native.TRIREME_DTYPE_F32 if narrow else raw.dtype
    return Product(
        dtype=dtype_name(raw.dtype),
        rows=raw.rows,
        columns=raw.columns,
        depth=raw.depth,
        left=view(raw.left, *left, raw.left_step, raw.dtype, False),
        left_step=raw.left_step,
        left_transposed=bool(raw.left_transposed),
        right=view(raw.right, *right, raw.right_step, raw.dtype, False),
        right_step=raw.right_step,
        right_transposed=bool(raw.right_transposed),
        result=view(raw.result, raw.rows, raw.columns, raw.result_step, wide, True),
        result_step=raw.result_step,
        add=bool(raw.add),
    )


def _activation(raw: Any) -> ActivationCall:
    outputs, inputs = raw.rows * raw.columns, raw.rows * raw.input_columns
    gradient = raw.output_gradient
    return ActivationCall(
        dtype=dtype_name(raw.dtype),
        rows=raw.rows,
        columns=raw.columns,
        input_columns=raw.input_columns,
        first_column=raw.first_column,
        input=_view(raw.input, inputs, raw.dtype),
        output_gradient=None if gradient is None else _view(gradient, outputs, raw.dtype),
        result=_view(raw.result, outputs if gradient is None else inputs, raw.dtype, True),
    )


def _run_product(raw: Any, number: int) -> int:
    return _run(number, "product", _product, raw)


def _run_forward(raw: Any, number: int) -> int:
    return _run(number, "forward", _activation, raw)


def _run_backward(raw: Any, number: int) -> int:
    return _run(number, "backward", _activation, raw)


product_callback = _native.trireme_product_callback(_run_product)
forward_callback = _native.trireme_activation_callback(_run_forward)
backward_callback = _native.trireme_activation_callback(_run_backward)
