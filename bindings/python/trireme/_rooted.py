"""Collectives in which one rank, the root, gives or gets."""

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
    reduction_code,
    same_shape,
    taken,
)
from ._request import Request
from ._values import Dtype, Name, in_range

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RootedCollectives(Operations):
    # An argument that the root alone uses is None, or not read, on the other ranks.

    def _reduce(
        self, data: Any, out: Any, root: int, reduction: Name, dtype: Any, options: CallOptions
    ) -> tuple[tuple[Any, ...], Any]:
        keep: Any
        target: int | None = None
        if self._rank != root:
            keep, address, count, code = given(self, data, dtype, "the send buffer", options)
        elif out is None:
            keep, address, count, code = taken(self, data, dtype, "the buffer", options)
            target = address
        else:
            keep, address, count, target, out_count, code = both(self, data, out, dtype, options)
            same_shape(keep, count, out_count)
        in_range(root, 31, "root")
        numbers = (count, code, reduction_code(reduction), root, call_options(options))
        return (self._handle, address, target, *numbers), keep

    def reduce(
        self,
        data: Any,
        root: int = 0,
        out: Any = None,
        reduction: Name = "sum",
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Reduces `data` over all ranks into the root's `out`, or in place there without `out`."""
        arguments, keep = self._reduce(data, out, root, reduction, dtype, options)
        finish(library.trireme_reduce(*arguments), keep)

    def start_reduce(
        self,
        data: Any,
        root: int = 0,
        out: Any = None,
        reduction: Name = "sum",
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts reduce()."""
        arguments, keep = self._reduce(data, out, root, reduction, dtype, options)
        return Request(self, library.trireme_reduce_start, arguments, keep)

    # ---- gather ----------------------------------------------------------------------------

    def _gather(
        self, data: Any, out: Any, counts: Any, root: int, dtype: Any, options: CallOptions
    ) -> tuple[tuple[Any, ...], Any]:
        keep: Any
        target: int | None = None
        if self._rank == root:
            keep, address, count, target, out_count, code = both(self, data, out, dtype, options)
            if counts is None:
                self._whole("receive", out_count, "send", count)
        else:
            out_count = None
            keep, address, count, code = given(self, data, dtype, "the send buffer", options)
        lengths = count if counts is None else self._counts(counts, out_count, count)
        numbers = (lengths, code, in_range(root, 31, "root"), call_options(options))
        return (self._handle, address, target, *numbers), keep

    def gather(
        self,
        data: Any,
        out: Any = None,
        root: int = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Gives the root the `data` of all ranks in its `out`, in rank order."""
        arguments, keep = self._gather(data, out, None, root, dtype, options)
        finish(library.trireme_gather(*arguments), keep)

    def start_gather(
        self,
        data: Any,
        out: Any = None,
        root: int = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts gather()."""
        arguments, keep = self._gather(data, out, None, root, dtype, options)
        return Request(self, library.trireme_gather_start, arguments, keep)

    def gather_v(
        self,
        data: Any,
        out: Any,
        counts: Sequence[int],
        root: int = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """gather() of blocks with counts[0], counts[1], ... elements."""
        arguments, keep = self._gather(data, out, counts, root, dtype, options)
        finish(library.trireme_gather_v(*arguments), keep)

    def start_gather_v(
        self,
        data: Any,
        out: Any,
        counts: Sequence[int],
        root: int = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts gather_v()."""
        arguments, keep = self._gather(data, out, counts, root, dtype, options)
        return Request(self, library.trireme_gather_v_start, arguments, keep)

    # ---- scatter ---------------------------------------------------------------------------

    def _scatter(
        self, data: Any, out: Any, counts: Any, root: int, dtype: Any, options: CallOptions
    ) -> tuple[tuple[Any, ...], Any]:
        keep: Any
        address: int | None = None
        count: int | None = None
        if self._rank == root:
            keep, address, count, target, out_count, code = both(self, data, out, dtype, options)
            if counts is None:
                self._whole("send", count, "receive", out_count)
        else:
            keep, target, out_count, code = taken(self, out, dtype, "the receive buffer", options)
        lengths = out_count if counts is None else self._counts(counts, count, out_count)
        numbers = (lengths, code, in_range(root, 31, "root"), call_options(options))
        return (self._handle, address, target, *numbers), keep

    def scatter(
        self,
        data: Any,
        out: Any,
        root: int = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Gives rank r block r of the root's `data`, world size blocks of len(out) elements."""
        arguments, keep = self._scatter(data, out, None, root, dtype, options)
        finish(library.trireme_scatter(*arguments), keep)

    def start_scatter(
        self,
        data: Any,
        out: Any,
        root: int = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts scatter()."""
        arguments, keep = self._scatter(data, out, None, root, dtype, options)
        return Request(self, library.trireme_scatter_start, arguments, keep)

    def scatter_v(
        self,
        data: Any,
        out: Any,
        counts: Sequence[int],
        root: int = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """scatter() of blocks with counts[0], counts[1], ... elements."""
        arguments, keep = self._scatter(data, out, counts, root, dtype, options)
        finish(library.trireme_scatter_v(*arguments), keep)

    def start_scatter_v(
        self,
        data: Any,
        out: Any,
        counts: Sequence[int],
        root: int = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts scatter_v()."""
        arguments, keep = self._scatter(data, out, counts, root, dtype, options)
        return Request(self, library.trireme_scatter_v_start, arguments, keep)
