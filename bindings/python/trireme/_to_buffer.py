"""Operations that find out how much comes, and answer new memory."""

from __future__ import annotations

import sys
from ctypes import byref, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Sequence

from ._buffer import adopt
from ._errors import check
from ._native import library
from ._operation import CallOptions, Operations, call_options
from ._values import LETTERS, Dtype, dtype_number, in_range, readable, size_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _named(dtype: Dtype | None) -> int:
    if dtype is None:
        raise TypeError("without data the dtype must be named")
    return dtype_number(dtype)


def elements_of(handle: c_void_p, code: int, like: Any) -> Any:
    """The elements of a new buffer: as a numpy array if `like` is one, else as a memoryview."""
    view = adopt(handle).view(code)
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(like, numpy.ndarray):
        return view
    if like.dtype.itemsize != size_of(code):  # other elements were named
        return numpy.asarray(view)
    return numpy.frombuffer(view, like.dtype) if view.nbytes else numpy.empty(0, like.dtype)


class ToBuffer(Operations):
    def broadcast_to_buffer(
        self,
        data: Any = None,
        root: int = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Gives every rank the root's elements in new memory; only the root knows how many.

        Ranks without `data` name its `dtype`. Answers a memoryview, or a numpy array if `data` is
        one.
        """
        address, count = None, 0
        if self._rank == root:
            _view, address, count, code = readable(data, dtype, "the buffer")
        else:
            code = _named(dtype) if data is None else readable(data, dtype, "the buffer")[3]
        handle = c_void_p()
        numbers = (count, code, in_range(root, 31, "root"), call_options(options))
        check(library.trireme_broadcast_to_buffer(self._handle, address, *numbers, byref(handle)))
        return elements_of(handle, code, data)

    def scatter_to_buffer(
        self,
        data: Any = None,
        counts: Sequence[int] | None = None,
        root: int = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Gives rank r block r of the root's `data` in new memory; only the root knows the counts.

        Without `counts` the blocks differ by at most one element, the longer ones first. Ranks
        without `data` name its `dtype`. Answers as broadcast_to_buffer().
        """
        address = numbers = None
        if self._rank == root:
            _view, address, whole, code = readable(data, dtype, "the send buffer")
            if counts is None:
                each, more = divmod(whole, self._world_size)
                counts = [each + (rank < more) for rank in range(self._world_size)]
            numbers = self._numbers(counts, whole)
        else:
            code = _named(dtype) if data is None else readable(data, dtype, "the send buffer")[3]
        handle = c_void_p()
        rest = (code, in_range(root, 31, "root"), call_options(options))
        check(
            library.trireme_scatter_to_buffer(self._handle, address, numbers, *rest, byref(handle))
        )
        return elements_of(handle, code, data)

    def all_gather_to_buffer(
        self, data: Any, *, dtype: Dtype | None = None, **options: Unpack[CallOptions]
    ) -> tuple[Any, list[int]]:
        """Gives every rank the `data` of all ranks in new memory, whatever their lengths.

        Answers the elements, as broadcast_to_buffer() does, and the length of each block.
        """
        _view, address, count, code = readable(data, dtype, "the send buffer")
        counts = (c_uint64 * self._world_size)()
        handle = c_void_p()
        check(
            library.trireme_all_gather_to_buffer(
                self._handle, address, count, code, call_options(options), counts, byref(handle)
            )
        )
        return elements_of(handle, code, data), list(counts)
