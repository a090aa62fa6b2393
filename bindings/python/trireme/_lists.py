"""Several operations as one: lists of buffers, and batches of calls."""

from __future__ import annotations

import threading
from ctypes import c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Sequence

from ._errors import check
from ._native import library
from ._operation import CallOptions, Operations, batched, call_options, finish, reduction_code
from ._request import Request
from ._values import Dtype, Name, dtype_name, dtype_number, in_range, readable, writable

if TYPE_CHECKING:
    from typing_extensions import Unpack


class batch:
    """A `with` block whose operations are started and waited for together, at its end.

    Blocking operations of this thread inside it, on any communicator, have only begun when they
    return; their memory is the library's until the block ends. Sends and receives inside need no
    order. A failure of one of them is raised at the end. Blocks may be nested; the outermost waits.
    Do not `await` inside.

    >>> import array, trireme
    >>> data = array.array("i", [0])
    >>> with trireme.Communicator(0, 1, "local://batch-doctest") as communicator:
    ...     with trireme.batch():
    ...         communicator.receive(data, 0)
    ...         communicator.send(array.array("i", [7]), 0)
    ...     data[0]
    7
    """

    def __enter__(self) -> None:
        thread = threading.get_ident()
        check(library.trireme_batch_begin())
        self._outermost = thread not in batched
        if self._outermost:
            batched[thread] = []

    def __exit__(self, problem: object, *_: object) -> None:
        code = library.trireme_batch_end()
        if self._outermost:
            batched.pop(threading.get_ident(), None)
        if problem is None:
            check(code)


class _List:
    """Buffers of one dtype as the library wants them."""

    def __init__(self, buffers: Sequence[Any], find: Any, dtype: Dtype | None, what: str) -> None:
        found = [find(data, dtype, f"{what} {i}") for i, data in enumerate(buffers)]
        self.views = [view for view, *_ in found]
        self.counts = [count for _, _, count, _ in found]
        self.addresses = (c_void_p * len(found))(*(address for _, address, _, _ in found))
        self.code = _code(found, dtype, what)


def _code(found: Sequence[Any], dtype: Dtype | None, what: str) -> int:
    if not found:
        if dtype is None:
            raise ValueError("a list without buffers needs a dtype")
        return dtype_number(dtype)
    code: int = found[0][3]
    for i, (_, _, _, other) in enumerate(found):
        if other != code:
            raise TypeError(
                f"{what} {i} has elements of type {dtype_name(other)}, "
                f"{what} 0 of {dtype_name(code)}"
            )
    return code


class Lists(Operations):
    # Each is one call of the operation for each entry; small entries travel together.

    def _both_lists(
        self, data: Any, outs: Any, dtype: Any, factors: tuple[int, int]
    ) -> tuple[tuple[Any, ...], int, Any]:
        """Addresses of both, counts and length; the dtype; what must be kept."""
        sends = _List(data, readable, dtype, "send buffer")
        receives = _List(outs, writable, dtype, "receive buffer")
        if len(data) != len(outs):
            raise ValueError(f"{len(data)} send buffers, but {len(outs)} receive buffers")
        if sends.code != receives.code:
            raise TypeError(
                f"the send buffers have elements of type {dtype_name(sends.code)}, "
                f"the receive buffers of {dtype_name(receives.code)}"
            )
        send, receive = factors
        for i, (given, taken) in enumerate(zip(sends.counts, receives.counts)):
            if given * receive != taken * send:
                raise ValueError(
                    f"send buffer {i} has {given} elements, receive buffer {i} has {taken}; "
                    f"wanted is {send} to {receive}"
                )
        blocks = sends.counts if send == 1 else receives.counts
        lists = (sends.addresses, receives.addresses, (c_uint64 * len(blocks))(*blocks))
        return (*lists, len(blocks)), sends.code, (sends.views, receives.views, lists)

    def _all_reduce_list(
        self, data: Any, outs: Any, reduction: Name, dtype: Any, options: CallOptions
    ) -> tuple[tuple[Any, ...], Any]:
        lists, code, keep = self._both_lists(data, data if outs is None else outs, dtype, (1, 1))
        numbers = (code, reduction_code(reduction), call_options(options))
        return (self._handle, *lists, *numbers), keep

    def all_reduce_list(
        self,
        data: Sequence[Any],
        outs: Sequence[Any] | None = None,
        reduction: Name = "sum",
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """all_reduce() of every buffer in `data` into its place in `outs`, or in place."""
        arguments, keep = self._all_reduce_list(data, outs, reduction, dtype, options)
        finish(library.trireme_all_reduce_list(*arguments), keep)

    def start_all_reduce_list(
        self,
        data: Sequence[Any],
        outs: Sequence[Any] | None = None,
        reduction: Name = "sum",
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts all_reduce_list()."""
        arguments, keep = self._all_reduce_list(data, outs, reduction, dtype, options)
        return Request(self, library.trireme_all_reduce_list_start, arguments, keep)

    def _reduce_scatter_list(
        self, data: Any, outs: Any, reduction: Name, dtype: Any, options: CallOptions
    ) -> tuple[tuple[Any, ...], Any]:
        lists, code, keep = self._both_lists(data, outs, dtype, (self._world_size, 1))
        numbers = (code, reduction_code(reduction), call_options(options))
        return (self._handle, *lists, *numbers), keep

    def reduce_scatter_list(
        self,
        data: Sequence[Any],
        outs: Sequence[Any],
        reduction: Name = "sum",
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """reduce_scatter() of every buffer in `data` into its place in `outs`."""
        arguments, keep = self._reduce_scatter_list(data, outs, reduction, dtype, options)
        finish(library.trireme_reduce_scatter_list(*arguments), keep)

    def start_reduce_scatter_list(
        self,
        data: Sequence[Any],
        outs: Sequence[Any],
        reduction: Name = "sum",
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts reduce_scatter_list()."""
        arguments, keep = self._reduce_scatter_list(data, outs, reduction, dtype, options)
        return Request(self, library.trireme_reduce_scatter_list_start, arguments, keep)

    def _all_gather_list(
        self, data: Any, outs: Any, dtype: Any, options: CallOptions
    ) -> tuple[tuple[Any, ...], Any]:
        lists, code, keep = self._both_lists(data, outs, dtype, (1, self._world_size))
        return (self._handle, *lists, code, call_options(options)), keep

    def all_gather_list(
        self,
        data: Sequence[Any],
        outs: Sequence[Any],
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """all_gather() of every buffer in `data` into its place in `outs`."""
        arguments, keep = self._all_gather_list(data, outs, dtype, options)
        finish(library.trireme_all_gather_list(*arguments), keep)

    def start_all_gather_list(
        self,
        data: Sequence[Any],
        outs: Sequence[Any],
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts all_gather_list()."""
        arguments, keep = self._all_gather_list(data, outs, dtype, options)
        return Request(self, library.trireme_all_gather_list_start, arguments, keep)

    def _broadcast_list(
        self, data: Any, root: int, dtype: Any, options: CallOptions
    ) -> tuple[tuple[Any, ...], Any]:
        buffers = _List(data, readable if root == self._rank else writable, dtype, "buffer")
        counts = (c_uint64 * len(buffers.counts))(*buffers.counts)
        numbers = (len(counts), buffers.code, in_range(root, 31, "root"), call_options(options))
        return (self._handle, buffers.addresses, counts, *numbers), (buffers, counts)

    def broadcast_list(
        self,
        data: Sequence[Any],
        root: int = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """broadcast() of every buffer in `data`."""
        arguments, keep = self._broadcast_list(data, root, dtype, options)
        finish(library.trireme_broadcast_list(*arguments), keep)

    def start_broadcast_list(
        self,
        data: Sequence[Any],
        root: int = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts broadcast_list()."""
        arguments, keep = self._broadcast_list(data, root, dtype, options)
        return Request(self, library.trireme_broadcast_list_start, arguments, keep)
