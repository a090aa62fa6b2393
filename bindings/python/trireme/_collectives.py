"""Collectives in which every rank gives and gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from ._native import library
from ._operation import (
    CallOptions,
    Operations,
    both,
    call_options,
    finish,
    given,
    batched,
    reduction_code,
    same_shape,
    taken,
)
from ._request import Request
from ._values import Dtype, Name, in_range

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Looked up once: an attribute of the library costs more than a global.
_all_reduce = library.trireme_all_reduce
_reduce_scatter = library.trireme_reduce_scatter
_all_gather = library.trireme_all_gather
_broadcast = library.trireme_broadcast
_barrier = library.trireme_barrier


class Collectives(Operations):
    # ---- all-reduce ------------------------------------------------------------------------

    def _all_reduce(
        self, data: Any, out: Any, reduction: Name, dtype: Any, options: CallOptions
    ) -> tuple[tuple[Any, ...], Any]:
        keep: Any
        if out is None:
            keep, address, count, code = taken(self, data, dtype, "the buffer", options)
            target = address
        else:
            keep, address, count, target, out_count, code = both(self, data, out, dtype, options)
            same_shape(keep, count, out_count)
        numbers = (count, code, reduction_code(reduction), call_options(options))
        return (self._handle, address, target, *numbers), keep

    def all_reduce(
        self,
        data: Any,
        out: Any = None,
        reduction: Name = "sum",
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Reduces `data` over all ranks into `out`, or in place without `out`."""
        arguments, keep = self._all_reduce(data, out, reduction, dtype, options)
        code = _all_reduce(*arguments)
        if code or batched:
            finish(code, keep)

    def start_all_reduce(
        self,
        data: Any,
        out: Any = None,
        reduction: Name = "sum",
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts all_reduce()."""
        arguments, keep = self._all_reduce(data, out, reduction, dtype, options)
        return Request(self, library.trireme_all_reduce_start, arguments, keep)

    # ---- reduce-scatter --------------------------------------------------------------------

    def _reduce_scatter(
        self, data: Any, out: Any, counts: Any, reduction: Name, dtype: Any, options: CallOptions
    ) -> tuple[tuple[Any, ...], Any]:
        keep, address, count, target, out_count, code = both(self, data, out, dtype, options)
        if counts is None:
            self._whole("send", count, "receive", out_count)
            counts = out_count
        else:
            counts = self._counts(counts, count, out_count)
        numbers = (counts, code, reduction_code(reduction), call_options(options))
        return (self._handle, address, target, *numbers), keep

    def reduce_scatter(
        self,
        data: Any,
        out: Any,
        reduction: Name = "sum",
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Reduces world size blocks of len(out) elements and gives rank r block r."""
        arguments, keep = self._reduce_scatter(data, out, None, reduction, dtype, options)
        finish(_reduce_scatter(*arguments), keep)

    def start_reduce_scatter(
        self,
        data: Any,
        out: Any,
        reduction: Name = "sum",
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts reduce_scatter()."""
        arguments, keep = self._reduce_scatter(data, out, None, reduction, dtype, options)
        return Request(self, library.trireme_reduce_scatter_start, arguments, keep)

    def reduce_scatter_v(
        self,
        data: Any,
        out: Any,
        counts: Sequence[int],
        reduction: Name = "sum",
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Reduces blocks of counts[0], counts[1], ... elements and gives rank r block r."""
        arguments, keep = self._reduce_scatter(data, out, counts, reduction, dtype, options)
        finish(library.trireme_reduce_scatter_v(*arguments), keep)

    def start_reduce_scatter_v(
        self,
        data: Any,
        out: Any,
        counts: Sequence[int],
        reduction: Name = "sum",
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts reduce_scatter_v()."""
        arguments, keep = self._reduce_scatter(data, out, counts, reduction, dtype, options)
        return Request(self, library.trireme_reduce_scatter_v_start, arguments, keep)

    # ---- all-gather ------------------------------------------------------------------------

    def _all_gather(
        self, data: Any, out: Any, counts: Any, dtype: Any, options: CallOptions
    ) -> tuple[tuple[Any, ...], Any]:
        keep, address, count, target, out_count, code = both(self, data, out, dtype, options)
        if counts is None:
            self._whole("receive", out_count, "send", count)
            counts = count
        else:
            counts = self._counts(counts, out_count, count)
        return (self._handle, address, target, counts, code, call_options(options)), keep

    def all_gather(
        self,
        data: Any,
        out: Any,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Gives every rank the `data` of all ranks in `out`, in rank order."""
        arguments, keep = self._all_gather(data, out, None, dtype, options)
        finish(_all_gather(*arguments), keep)

    def start_all_gather(
        self,
        data: Any,
        out: Any,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts all_gather()."""
        arguments, keep = self._all_gather(data, out, None, dtype, options)
        return Request(self, library.trireme_all_gather_start, arguments, keep)

    def all_gather_v(
        self,
        data: Any,
        out: Any,
        counts: Sequence[int],
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """all_gather() of blocks with counts[0], counts[1], ... elements."""
        arguments, keep = self._all_gather(data, out, counts, dtype, options)
        finish(library.trireme_all_gather_v(*arguments), keep)

    def start_all_gather_v(
        self,
        data: Any,
        out: Any,
        counts: Sequence[int],
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts all_gather_v()."""
        arguments, keep = self._all_gather(data, out, counts, dtype, options)
        return Request(self, library.trireme_all_gather_v_start, arguments, keep)

    # ---- all-to-all ------------------------------------------------------------------------

    def _all_to_all(
        self, data: Any, out: Any, dtype: Any, options: CallOptions
    ) -> tuple[tuple[Any, ...], Any]:
        keep, address, count, target, out_count, code = both(self, data, out, dtype, options)
        block = count // self._world_size
        if count != out_count or count % self._world_size:
            raise ValueError(
                f"the send buffer has {count} elements, the receive buffer {out_count}; both need "
                f"world size {self._world_size} equal blocks"
            )
        return (self._handle, address, target, block, code, call_options(options)), keep

    def all_to_all(
        self,
        data: Any,
        out: Any,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Gives rank r block r of every rank's `data`: a transposition of equal blocks."""
        arguments, keep = self._all_to_all(data, out, dtype, options)
        finish(library.trireme_all_to_all(*arguments), keep)

    def start_all_to_all(
        self,
        data: Any,
        out: Any,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts all_to_all()."""
        arguments, keep = self._all_to_all(data, out, dtype, options)
        return Request(self, library.trireme_all_to_all_start, arguments, keep)

    def _all_to_all_v(
        self,
        data: Any,
        counts: Any,
        out: Any,
        out_counts: Any,
        dtype: Any,
        options: CallOptions,
    ) -> tuple[tuple[Any, ...], Any]:
        keep, address, count, target, out_count, code = both(self, data, out, dtype, options)
        given = self._numbers(counts, count)
        taken = self._numbers(out_counts, out_count)
        return (self._handle, address, given, target, taken, code, call_options(options)), keep

    def all_to_all_v(
        self,
        data: Any,
        counts: Sequence[int],
        out: Any,
        out_counts: Sequence[int],
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """all_to_all() of unequal blocks: counts[r] elements for rank r, out_counts[r] of it.

        out_counts[r] must be the number of elements that rank r sends to this rank.
        """
        arguments, keep = self._all_to_all_v(data, counts, out, out_counts, dtype, options)
        finish(library.trireme_all_to_all_v(*arguments), keep)

    def start_all_to_all_v(
        self,
        data: Any,
        counts: Sequence[int],
        out: Any,
        out_counts: Sequence[int],
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts all_to_all_v()."""
        arguments, keep = self._all_to_all_v(data, counts, out, out_counts, dtype, options)
        return Request(self, library.trireme_all_to_all_v_start, arguments, keep)

    # ---- broadcast and barrier -------------------------------------------------------------

    def _broadcast(
        self, data: Any, root: int, dtype: Any, options: CallOptions
    ) -> tuple[tuple[Any, ...], Any]:
        find = given if root == self._rank else taken
        view, address, count, code = find(self, data, dtype, "the buffer", options)
        numbers = (count, code, in_range(root, 31, "root"), call_options(options))
        return (self._handle, address, *numbers), view

    def broadcast(
        self,
        data: Any,
        root: int = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Gives every rank the root's elements; the root's memory is only read."""
        arguments, keep = self._broadcast(data, root, dtype, options)
        finish(_broadcast(*arguments), keep)

    def start_broadcast(
        self,
        data: Any,
        root: int = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts broadcast()."""
        arguments, keep = self._broadcast(data, root, dtype, options)
        return Request(self, library.trireme_broadcast_start, arguments, keep)

    def barrier(self, **options: Unpack[CallOptions]) -> None:
        """Waits until every rank has called it."""
        finish(_barrier(self._handle, call_options(options)), None)

    def start_barrier(self, **options: Unpack[CallOptions]) -> Request:
        """Starts barrier()."""
        arguments = (self._handle, call_options(options))
        return Request(self, library.trireme_barrier_start, arguments, None)
