"""Attention whose heads are split between ranks: two linear layers around the caller's core."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any, Callable, Iterator

from . import _native
from ._errors import InvalidArgumentError, InvalidStateError
from ._fields import function, instance
from ._layers import ColumnParallelLinear, ParallelMode, RowParallelLinear
from ._tensor import Tensor
from ._values import LETTERS, Dtype, dtype_number, size_of


@dataclasses.dataclass(frozen=True)
class AttentionCore:
    """One call of a core: attention of this rank's heads over all rows.

    Arrays are flat memoryviews. A row of `qkv` has the queries of all own heads, then their keys,
    then their values. A row of `mixed` has one output for each query. A forward call writes
    `mixed`. A backward call reads `mixed_gradient` and writes `qkv_gradient`; in a forward call
    these are None. 16-bit types show as integers.
    """

    rows: int  #: Rows of the whole input.
    heads: range  #: Own heads, by their numbers in the whole layer.
    head_width: int  #: Elements of a query, of a key and of a value.
    qkv: memoryview
    mixed: memoryview
    mixed_gradient: memoryview | None = None
    qkv_gradient: memoryview | None = None


CoreFunction = Callable[[AttentionCore], object]

#: The passes of a micro-batch, in their order.
_PASSES = ("forward", "backward_input", "backward_weight")
_MARK_BYTES = 16


class ParallelAttention:
    """Queries, keys and values in one column-parallel layer, a core, and a row-parallel layer.

    Each rank has whole heads: the tensor object's blocks divide `heads`. `core` are two functions,
    one for each direction, which get each AttentionCore. Weights and gradients are four: of
    queries, keys and values (weight, bias), and of the output (weight, bias). Biases are None
    without `bias`. Use it in a `with` block, or call close().

    Each micro-batch has its own `kept`, or uses it after another one is done. Its passes are forward(),
    backward_input() and backward_weight(), each once. A pass without the one before it raises
    InvalidStateError. After a pass that failed, forward() comes first again. forward() may come at
    any time, as for evaluation.

    The two layers exchange data between ranks, and a core runs between them. If a core raises,
    that pass ends on its rank alone. The other ranks then wait in the exchange after the core, up to
    the timeout of the tensor object. Catch the exception and call Communicator.abort(), which ends the
    wait on all ranks with AbortedError.
    """

    def __init__(
        self,
        tensor: Tensor,
        name: str,
        width: int,
        heads: int,
        rows: int,
        *,
        core: tuple[CoreFunction, CoreFunction],
        head_width: int | None = None,
        dtype: Dtype = "f32",
        bias: bool = False,
    ) -> None:
        instance(Tensor, tensor, "tensor")
        forward, backward = core
        self._forward = function(forward, "core[0]")
        self._backward = function(backward, "core[1]")
        if heads < 1 or heads % tensor.blocks != 0 or (head_width is None and width % heads != 0):
            raise InvalidArgumentError(
                f"{heads} heads: {tensor.blocks} blocks of the tensor object do not divide them, or "
                f"they do not divide the width {width}",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        self._rows = rows
        self._heads = tensor.heads(heads).heads
        self._head_width = width // heads if head_width is None else head_width
        self._dtype = dtype_number(dtype)
        self._token = os.urandom(_MARK_BYTES - 1)  # other memory does not hold it by chance
        inner = heads * self._head_width
        #: The layer of queries, keys and values.
        self.qkv = ColumnParallelLinear(
            tensor, f"{name}.qkv", width, 3 * inner, rows, dtype=dtype, bias=bias, stretches=3
        )
        try:
            #: The layer of the output.
            self.out = RowParallelLinear(
                tensor, f"{name}.out", inner, width, rows, dtype=dtype, bias=bias
            )
        except BaseException:
            self.qkv.close()
            raise

    def close(self) -> None:
        """Destroys both layers; their names are free again."""
        self.qkv.close()
        self.out.close()

    def __enter__(self) -> ParallelAttention:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def mode(self) -> ParallelMode:
        """How ranks split the layer."""
        return self.qkv.mode | self.out.mode

    @property
    def heads(self) -> range:
        """The heads of this rank."""
        return self._heads

    def _places(self) -> list[tuple[int, int]]:
        """First byte and bytes: qkv, mixed, both gradients, what the two layers keep, the mark."""
        mixed = self._rows * len(self._heads) * self._head_width * size_of(self._dtype)
        sizes = [3 * mixed, mixed, mixed, 3 * mixed]
        sizes += [self.qkv.info.kept_bytes, self.out.info.kept_bytes, _MARK_BYTES]
        places, first = [], 0
        for size in sizes:
            places.append((first, size))
            first += (size + 63) // 64 * 64
        return [*places, (first, 0)]

    @property
    def kept_bytes(self) -> int:
        """Bytes of `kept`, from forward to backward."""
        return self._places()[-1][0]

    def _views(self, kept: Any) -> list[memoryview]:
        whole = memoryview(kept).cast("B")
        places = self._places()
        if len(whole) < places[-1][0]:
            raise InvalidArgumentError(
                f"kept has {len(whole)} bytes, but the layer wants {places[-1][0]}",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        views = [whole[first : first + size] for first, size in places[:-1]]
        return [view.cast(LETTERS[self._dtype]) for view in views[:4]] + views[4:]

    @contextlib.contextmanager
    def _pass(self, kept: Any, number: int) -> Iterator[list[memoryview]]:
        """The arrays of `kept`, whose mark tells the last pass that went well."""
        *views, mark = self._views(kept)
        if number > 0 and mark != self._token + bytes([number - 1]):
            raise InvalidStateError(
                f"{_PASSES[number]}: {_PASSES[number - 1]}() of this micro-batch is missing",
                _native.TRIREME_ERROR_INVALID_STATE,
            )
        mark[:] = bytes(_MARK_BYTES)
        yield views
        mark[:] = self._token + bytes([number])

    def _core(self, *arrays: memoryview) -> AttentionCore:
        return AttentionCore(self._rows, self._heads, self._head_width, *arrays)

    def forward(self, input: Any, weights: tuple[Any, Any, Any, Any], out: Any, kept: Any) -> None:
        """Computes the output. `kept` has kept_bytes for the backward passes."""
        qkv_weight, qkv_bias, out_weight, out_bias = weights
        with self._pass(kept, 0) as (qkv, mixed, _, _, of_qkv, of_out):
            self.qkv.forward(input, qkv_weight, qkv, bias=qkv_bias, kept=of_qkv or None)
            self._forward(self._core(qkv, mixed))
            self.out.forward(mixed, out_weight, out, bias=out_bias, kept=of_out or None)

    def backward_input(
        self, output_gradient: Any, weights: tuple[Any, Any, Any, Any], out: Any, kept: Any
    ) -> None:
        """Computes the gradient of the input. After forward()."""
        qkv_weight, _, out_weight, _ = weights
        with self._pass(kept, 1) as (qkv, mixed, mixed_slopes, qkv_slopes, of_qkv, of_out):
            self.out.backward_input(output_gradient, out_weight, mixed_slopes, kept=of_out or None)
            self._backward(self._core(qkv, mixed, mixed_slopes, qkv_slopes))
            self.qkv.backward_input(qkv_slopes, qkv_weight, out, kept=of_qkv or None)

    def backward_weight(
        self,
        input: Any,
        output_gradient: Any,
        gradients: tuple[Any, Any, Any, Any],
        kept: Any,
        *,
        add: bool = False,
    ) -> None:
        """Computes the gradients of weights and biases, or adds them. After backward_input()."""
        qkv_weight, qkv_bias, out_weight, out_bias = gradients
        with self._pass(kept, 2) as (_, mixed, _, qkv_slopes, of_qkv, of_out):
            self.out.backward_weight(
                mixed, output_gradient, out_weight, bias_out=out_bias, kept=of_out or None, add=add
            )
            self.qkv.backward_weight(
                input, qkv_slopes, qkv_weight, bias_out=qkv_bias, kept=of_qkv or None, add=add
            )
