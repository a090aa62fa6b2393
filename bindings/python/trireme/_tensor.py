"""Tensor parallelism: arrays that ranks hold in parts, and the exchanges between such forms."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import byref, c_uint64, c_void_p
from typing import Any, Callable, NamedTuple

from . import _native
from ._callers import Caller, ProductFunction, product_callback
from ._communicator import Communicator
from ._errors import InvalidArgumentError, check
from ._fields import instance
from ._native import library
from ._values import (
    Dtype,
    Name,
    dtype_name,
    dtype_number,
    encoded,
    in_range,
    nanoseconds,
    number_of,
    readable,
    writable,
    wrong_dtype,
)

REGION_KINDS = {
    "copy": _native.TRIREME_REGION_KIND_COPY,
    "reduce": _native.TRIREME_REGION_KIND_REDUCE,
    "gather": _native.TRIREME_REGION_KIND_GATHER,
    "gather_sum": _native.TRIREME_REGION_KIND_GATHER_SUM,
    "scatter": _native.TRIREME_REGION_KIND_SCATTER,
    "reduce_scatter": _native.TRIREME_REGION_KIND_REDUCE_SCATTER,
    "exchange": _native.TRIREME_REGION_KIND_EXCHANGE,
}
REGION_DIMENSIONS = {
    "none": _native.TRIREME_REGION_DIMENSION_NONE,
    "rows": _native.TRIREME_REGION_DIMENSION_ROWS,
    "columns": _native.TRIREME_REGION_DIMENSION_COLUMNS,
}


GEMM_KINDS = {
    "caller": _native.TRIREME_GEMM_KIND_CALLER,
    "loaded": _native.TRIREME_GEMM_KIND_LOADED,
    "builtin": _native.TRIREME_GEMM_KIND_BUILTIN,
}

#: Tensor has a method of that name.
_Range = range


class Heads(NamedTuple):
    """Attention heads of one rank."""

    heads: range  #: Query heads; may be empty.
    kv_heads: range  #: The key/value heads that these use.
    kv_shared: bool  #: Whether another rank holds one of these key/value heads, too.


class GemmInfo(NamedTuple):
    """The provider of products of layers."""

    kind: str  #: "loaded" or "builtin", or "caller" for a function.
    threads: int  #: Of each product; 0 if not known.
    repeatable: bool  #: Whether equal products gave equal bits.
    library: str  #: The name under which the BLAS was opened.
    version: str  #: As the BLAS tells it.
    difference: str  #: Products that gave other bits.


class RegionInfo(NamedTuple):
    """Sizes and counts of a region on this rank."""

    forward_passes: int  #: Those that have succeeded.
    backward_passes: int  #: Those that have succeeded.
    input_count: int  #: Elements of each part of a forward pass, and of a backward pass's result.
    output_count: int  #: Elements of a forward pass's result, and of each part of a backward pass.
    forward_parts: int  #: Arrays that a forward pass takes.
    backward_parts: int  #: Arrays that a backward pass takes.
    forward_bytes: int  #: Bytes of this rank that peers read in a forward pass.
    backward_bytes: int  #: Bytes of this rank that peers read in a backward pass.


class Region:
    """One place of a model where an array changes its form; made by Tensor.region().

    forward() converts the array, backward() its gradient. Both take one array, or a list or tuple
    of arrays where this rank has several summands. One thread at a time may use a region. Use it in
    a `with` block, or call close().
    """

    def __init__(self, tensor: Tensor, options: _native.trireme_region_options) -> None:
        handle = c_void_p()
        check(library.trireme_region_create(tensor._handle, byref(options), byref(handle)))
        self._handle = handle.value
        self._close = weakref.finalize(self, library.trireme_region_destroy, self._handle)
        self._dtype = options.dtype

    def close(self) -> None:
        """Destroys the region; its name is free again."""
        self._close()

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def info(self) -> RegionInfo:
        """Sizes and counts so far."""
        found = _native.trireme_region_info(struct_size=ctypes.sizeof(_native.trireme_region_info))
        check(library.trireme_region_get_info(self._handle, byref(found)))
        return RegionInfo(*(getattr(found, field) for field in RegionInfo._fields))

    def forward(self, parts: Any, out: Any, *, timeout: float | None = None) -> None:
        """Converts an array from the region's first form to its second one."""
        info = self.info
        counts = (info.input_count, info.output_count)
        self._pass(library.trireme_region_forward, parts, out, counts, timeout)

    def backward(self, parts: Any, out: Any, *, timeout: float | None = None) -> None:
        """Converts a gradient from the region's second form to its first one."""
        info = self.info
        counts = (info.output_count, info.input_count)
        self._pass(library.trireme_region_backward, parts, out, counts, timeout)

    def _pass(
        self,
        call: Callable[..., int],
        parts: Any,
        out: Any,
        counts: tuple[int, int],
        timeout: float | None,
    ) -> None:
        arrays = list(parts) if isinstance(parts, (list, tuple)) else [parts]
        kept = [
            self._memory(readable, array, counts[0], f"parts[{index}]")
            for index, array in enumerate(arrays)
        ]
        result = self._memory(writable, out, counts[1], "out")
        addresses = (c_void_p * len(kept))(*(address for _, address in kept))
        options = _native.trireme_pass_options(
            struct_size=ctypes.sizeof(_native.trireme_pass_options),
            timeout_ns=nanoseconds(timeout),
        )
        check(call(self._handle, addresses, len(kept), result[1], byref(options)))

    def _memory(
        self, open_memory: Callable[..., Any], data: Any, count: int, what: str
    ) -> tuple[memoryview, int | None]:
        """The memory and its address, if it is of the region's dtype and of that length."""
        view, address, found, code = open_memory(data, self._named(data), what)
        if code != self._dtype:
            raise TypeError(
                f"{what} has elements of type {dtype_name(code)}, the region of "
                f"{dtype_name(self._dtype)}{wrong_dtype(code, self._dtype)}"
            )
        if found != count:
            raise InvalidArgumentError(
                f"{what} has {found} elements, but the region wants {count}",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        return view, address

    def _named(self, data: Any) -> int | None:
        """The region's dtype, for memory whose own words cannot tell it: of bytes, or 16 bits."""
        try:
            letter = memoryview(data).format[-1:]
        except TypeError:
            letter = "B"  # a Buffer, or no memory at all
        return self._dtype if letter in "BHhbc" else None


def provider_of(
    gemm: Name | ProductFunction | None,
) -> tuple[Name | None, Caller | None]:
    """The name of a provider, and the function if it is one."""
    if callable(gemm):
        return "caller", Caller(product=gemm)
    if gemm == "caller":
        raise TypeError('gemm is "caller": give the function itself')
    return gemm, None


def native_options(
    blocks: int,
    gemm: Name | None,
    library_name: str | None,
    gemm_threads: int,
    sequence: bool,
    keep_gathered: bool,
    row_tile: int,
    timeout: float | None,
    products: Caller | None = None,
) -> _native.trireme_tensor_options:
    """The options of a tensor object. The struct keeps what it points to, but for `products`."""
    provider = _native.trireme_gemm_options(
        struct_size=ctypes.sizeof(_native.trireme_gemm_options),
        kind=0 if gemm is None else number_of(gemm, GEMM_KINDS, "gemm"),
        library=None if library_name is None else encoded(library_name),
        threads=in_range(gemm_threads, 32, "gemm_threads"),
    )
    if products is not None:
        provider.callback = product_callback
        provider.user_data = products.number
    flags = (_native.TRIREME_TENSOR_FLAG_SEQUENCE if sequence else 0) | (
        _native.TRIREME_TENSOR_FLAG_KEEP_GATHERED if keep_gathered else 0
    )
    return _native.trireme_tensor_options(
        struct_size=ctypes.sizeof(_native.trireme_tensor_options),
        flags=flags,
        blocks=in_range(blocks, 32, "blocks"),
        row_tile=in_range(row_tile, 32, "row_tile"),
        timeout_ns=nanoseconds(timeout),
        # The library refuses words on a provider that is none.
        gemm=ctypes.pointer(provider)
        if gemm is not None or library_name is not None or gemm_threads != 0
        else None,
    )


class Tensor:
    """How the ranks of a communicator split the layers of a model between them.

    Every extent (rows, columns, heads) is cut into `blocks` blocks. Each rank holds neighbouring
    ones. With `blocks` of G sums have the same bits for every number of ranks up to G. With 0 each
    rank has one block. Use it in a `with` block, or call close().

    >>> with Communicator(0, 1, "local://tensor-doctest") as group, Tensor(group, 4) as tensor:
    ...     tensor.range(10), tensor.block(10, 1), tensor.heads(8, 2).kv_heads
    (range(0, 10), range(2, 5), range(0, 2))
    """

    def __init__(
        self,
        communicator: Communicator,
        blocks: int = 0,
        *,
        gemm: Name | ProductFunction | None = None,
        library_name: str | None = None,
        gemm_threads: int = 0,
        sequence: bool = False,
        keep_gathered: bool = False,
        row_tile: int = 0,
        timeout: float | None = None,
    ) -> None:
        """`gemm` names who computes products of layers: "builtin" or "loaded", a BLAS.

        It may also be a function, which gets each Product. An exception of it comes out of the pass
        on its rank, and the other ranks get CallbackError.
        `library_name` is the file of the BLAS, or several with commas between, and `gemm_threads`
        its number of threads. `sequence` splits activations between layers by rows.
        `keep_gathered` keeps the gathered inputs for backward.
        `row_tile` is the number of rows that layers multiply at a time, and exchange while they
        multiply the next ones. 0 leaves it to the library: see docs/tensor.md.
        """
        instance(Communicator, communicator, "communicator")
        name, self._products = provider_of(gemm)
        options = native_options(
            blocks,
            name,
            library_name,
            gemm_threads,
            sequence,
            keep_gathered,
            row_tile,
            timeout,
            self._products,
        )
        handle = c_void_p()
        check(library.trireme_tensor_create(communicator._handle, byref(options), byref(handle)))
        self._own(handle, communicator.rank, sequence)

    _products: Caller | None = None

    def _own(self, handle: c_void_p, rank: int, sequence: bool) -> None:
        self._handle = handle.value
        self._close = weakref.finalize(self, library.trireme_tensor_destroy, self._handle)
        self._rank = rank
        self._sequence = sequence

    def close(self) -> None:
        """Destroys the object. Its regions live on."""
        self._close()

    def __enter__(self) -> Tensor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _info(self) -> _native.trireme_tensor_info:
        found = _native.trireme_tensor_info(struct_size=ctypes.sizeof(_native.trireme_tensor_info))
        check(library.trireme_tensor_get_info(self._handle, byref(found)))
        return found

    @property
    def sequence(self) -> bool:
        """Whether activations between layers are split by rows."""
        return self._sequence

    @property
    def gemm(self) -> GemmInfo | None:
        """The provider of products, if there is one."""
        found = _native.trireme_gemm_info(struct_size=ctypes.sizeof(_native.trireme_gemm_info))
        check(library.trireme_tensor_get_gemm_info(self._handle, byref(found)))
        kind = next((name for name, number in GEMM_KINDS.items() if number == found.kind), None)
        if kind is None:
            return None
        texts = (found.library.decode(), found.version.decode(), found.difference.decode())
        return GemmInfo(kind, int(found.threads), bool(found.repeatable), *texts)

    @property
    def blocks(self) -> int:
        """Blocks of every extent."""
        return int(self._info().blocks)

    @property
    def own_blocks(self) -> _Range:
        """The blocks of this rank."""
        info = self._info()
        return range(info.first_block, info.first_block + info.block_count)

    @property
    def region_count(self) -> int:
        """Regions that are not closed."""
        return int(self._info().region_count)

    def _range(self, call: Callable[..., int], extent: int, number: int) -> _Range:
        first, count = c_uint64(), c_uint64()
        check(
            call(self._handle, in_range(extent, 64, "extent"), number, byref(first), byref(count))
        )
        return range(first.value, first.value + count.value)

    def range(self, extent: int, rank: int | None = None) -> _Range:
        """The elements of an extent that a rank holds, by default this one."""
        number = self._rank if rank is None else in_range(rank, 31, "rank")
        return self._range(library.trireme_tensor_range, extent, number)

    def block(self, extent: int, block: int) -> _Range:
        """The elements of an extent that a block holds, of any rank."""
        number = in_range(block, 32, "block")
        return self._range(library.trireme_tensor_block, extent, number)

    def heads(self, heads: int, kv_heads: int | None = None, rank: int | None = None) -> Heads:
        """The attention heads of a rank. Without `kv_heads` there are as many as query heads."""
        found = _native.trireme_head_info(struct_size=ctypes.sizeof(_native.trireme_head_info))
        check(
            library.trireme_tensor_heads(
                self._handle,
                in_range(heads, 64, "heads"),
                in_range(heads if kv_heads is None else kv_heads, 64, "kv_heads"),
                self._rank if rank is None else in_range(rank, 31, "rank"),
                byref(found),
            )
        )
        return Heads(
            range(found.first_head, found.first_head + found.head_count),
            range(found.first_kv_head, found.first_kv_head + found.kv_head_count),
            bool(found.kv_shared),
        )

    def region(
        self,
        name: str,
        kind: Name,
        rows: int,
        columns: int,
        *,
        dimension: Name = "none",
        dtype: Dtype = "f32",
        parts: int = 0,
        row_unit: int = 0,
        column_unit: int = 0,
    ) -> Region:
        """Makes a region for a whole array of `rows` times `columns`.

        `kind` is "copy", "reduce", "gather", "gather_sum", "scatter", "reduce_scatter" or
        "exchange"; the last five need the `dimension` "rows" or "columns". `parts` are the summands
        of a sum of all ranks together, by default one for each block. As many rows or columns as
        a unit says stay on one rank together, such as those of an attention head.
        """
        return Region(
            self,
            _native.trireme_region_options(
                struct_size=ctypes.sizeof(_native.trireme_region_options),
                name=encoded(name),
                kind=number_of(kind, REGION_KINDS, "kind"),
                dimension=number_of(dimension, REGION_DIMENSIONS, "dimension"),
                rows=in_range(rows, 64, "rows"),
                columns=in_range(columns, 64, "columns"),
                dtype=dtype_number(dtype),
                parts=in_range(parts, 32, "parts"),
                row_unit=in_range(row_unit, 64, "row_unit"),
                column_unit=in_range(column_unit, 64, "column_unit"),
            ),
        )
