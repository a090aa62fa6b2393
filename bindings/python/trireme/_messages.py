"""Messages between two ranks."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any

from . import _native
from ._errors import InvalidArgumentError, check
from ._native import library
from ._operation import CallOptions, Operations, both, finish, flagged_options, given, taken
from ._request import MessageInfo, Request
from ._to_buffer import elements_of
from ._values import Dtype, dtype_number, in_range

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Looked up once: an attribute of the library costs more than a global.
_send = library.trireme_send
_receive = library.trireme_receive


def _empty_info() -> Any:
    return _native.trireme_message_info(struct_size=ctypes.sizeof(_native.trireme_message_info))


def _match(source: int | None, tag: int | None) -> tuple[int, int, int]:
    """Source, tag and flags of a receive; None is any."""
    flags = _native.TRIREME_OPERATION_FLAG_ANY_TAG if tag is None else 0
    rank = _native.TRIREME_ANY_SOURCE if source is None else _rank(source)
    return rank, 0 if tag is None else in_range(tag, 64, "tag"), flags


def _rank(source: int) -> int:
    if source < 0:  # the library's number for any source is no rank
        raise InvalidArgumentError(
            f"source {source} is negative; None is any", _native.TRIREME_ERROR_INVALID_ARGUMENT
        )
    return in_range(source, 31, "source")


class Messages(Operations):
    # A `source` or `tag` of None is any.

    def _sends(
        self, data: Any, to: int, tag: int, dtype: Any, flags: int, options: CallOptions
    ) -> tuple[tuple[Any, ...], Any]:
        view, address, count, code = given(self, data, dtype, "the buffer", options)
        in_range(to, 31, "rank")
        in_range(tag, 64, "tag")
        numbers = (count, code, to, tag, flagged_options(options, flags))
        return (self._handle, address, *numbers), view

    def send(
        self,
        data: Any,
        to: int,
        tag: int = 0,
        *,
        buffered: bool = False,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Sends elements to one rank; done when the memory may be used again.

        `buffered` copies them and does not wait for the receiver; a rank that leaves before they
        were taken loses them.
        """
        flags = _native.TRIREME_OPERATION_FLAG_BUFFERED if buffered else 0
        arguments, keep = self._sends(data, to, tag, dtype, flags, options)
        finish(_send(*arguments), keep)

    def start_send(
        self,
        data: Any,
        to: int,
        tag: int = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts send()."""
        arguments, keep = self._sends(data, to, tag, dtype, 0, options)
        return Request(self, library.trireme_send_start, arguments, keep)

    def _receives(
        self, data: Any, source: Any, tag: Any, dtype: Any, options: CallOptions
    ) -> tuple[tuple[Any, ...], Any]:
        view, address, count, code = taken(self, data, dtype, "the buffer", options)
        rank, number, flags = _match(source, tag)
        numbers = (count, code, rank, number, flagged_options(options, flags))
        return (self._handle, address, *numbers), view

    def receive(
        self,
        data: Any,
        source: int | None,
        tag: int | None = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Receives elements from rank `source`: as many as `data` has, of the same dtype."""
        arguments, keep = self._receives(data, source, tag, dtype, options)
        finish(_receive(*arguments), keep)

    def start_receive(
        self,
        data: Any,
        source: int | None,
        tag: int | None = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts receive(). message() of the request describes the message."""
        arguments, keep = self._receives(data, source, tag, dtype, options)
        return Request(self, library.trireme_receive_start, arguments, keep)

    def receive_message(
        self,
        data: Any,
        source: int | None = None,
        tag: int | None = None,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> MessageInfo:
        """Receives at most as many elements as `data` has, and describes the message."""
        arguments, _keep = self._receives(data, source, tag, dtype, options)
        found = _empty_info()
        check(library.trireme_receive_message(*arguments, byref(found)))
        return MessageInfo.of(found)

    def start_receive_message(
        self,
        data: Any,
        source: int | None = None,
        tag: int | None = None,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts receive_message(). message() of the request describes the message."""
        arguments, keep = self._receives(data, source, tag, dtype, options)
        return Request(self, library.trireme_receive_message_start, arguments, keep)

    def receive_to_buffer(
        self,
        dtype: Dtype,
        source: int | None = None,
        tag: int | None = None,
        **options: Unpack[CallOptions],
    ) -> tuple[memoryview[Any], MessageInfo]:
        """Receives a message of any length in new memory: its elements, and its description."""
        rank, number, flags = _match(source, tag)
        code = dtype_number(dtype)
        found, handle = _empty_info(), c_void_p()
        rest = (flagged_options(options, flags), byref(found), byref(handle))
        check(library.trireme_receive_to_buffer(self._handle, code, rank, number, *rest))
        return elements_of(handle, code, None), MessageInfo.of(found)

    def probe(
        self,
        source: int | None = None,
        tag: int | None = None,
        **options: Unpack[CallOptions],
    ) -> MessageInfo:
        """Waits until a message is there that a receive would take, and leaves it there."""
        rank, number, flags = _match(source, tag)
        found = _empty_info()
        rest = (flagged_options(options, flags), byref(found))
        check(library.trireme_probe(self._handle, rank, number, *rest))
        return MessageInfo.of(found)

    def start_probe(
        self,
        source: int | None = None,
        tag: int | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts probe(). message() of the request describes the message."""
        rank, number, flags = _match(source, tag)
        arguments = (self._handle, rank, number, flagged_options(options, flags))
        return Request(self, library.trireme_probe_start, arguments, None)

    def send_receive(
        self,
        data: Any,
        to: int,
        out: Any,
        source: int | None,
        send_tag: int = 0,
        receive_tag: int | None = 0,
        *,
        dtype: Dtype | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Sends `data` to one rank and receives `out` from one, both at once."""
        keep, address, count, target, out_count, code = both(self, data, out, dtype)
        rank, number, flags = _match(source, receive_tag)
        sends = (address, count, in_range(to, 31, "rank"), in_range(send_tag, 64, "tag"))
        receives = (target, out_count, rank, number)
        rest = (code, flagged_options(options, flags))
        finish(library.trireme_send_receive(self._handle, *sends, *receives, *rest), keep)
