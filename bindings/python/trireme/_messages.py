"""Messages between two ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._native import library
from ._operation import CallOptions, Operations, call_options, finish
from ._request import Request
from ._values import Name, in_range, readable, writable

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Looked up once: an attribute of the library costs more than a global.
_send = library.trireme_send
_receive = library.trireme_receive


class Messages(Operations):
    def _message(
        self, find: Any, data: Any, peer: int, tag: int, dtype: Any, options: CallOptions
    ) -> tuple[tuple[Any, ...], Any]:
        view, address, count, code = find(data, dtype, "the buffer")
        in_range(peer, 31, "rank")
        in_range(tag, 64, "tag")
        return (self._handle, address, count, code, peer, tag, call_options(options)), view

    def send(
        self,
        data: Any,
        to: int,
        tag: int = 0,
        *,
        dtype: Name | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Sends elements to one rank; done when the memory may be used again."""
        arguments, keep = self._message(readable, data, to, tag, dtype, options)
        finish(_send(*arguments), keep)

    def start_send(
        self,
        data: Any,
        to: int,
        tag: int = 0,
        *,
        dtype: Name | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts send()."""
        arguments, keep = self._message(readable, data, to, tag, dtype, options)
        return Request(self, library.trireme_send_start, arguments, keep)

    def receive(
        self,
        data: Any,
        source: int,
        tag: int = 0,
        *,
        dtype: Name | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Receives elements from rank `source`: as many as `data` has, of the same dtype."""
        arguments, keep = self._message(writable, data, source, tag, dtype, options)
        finish(_receive(*arguments), keep)

    def start_receive(
        self,
        data: Any,
        source: int,
        tag: int = 0,
        *,
        dtype: Name | None = None,
        **options: Unpack[CallOptions],
    ) -> Request:
        """Starts receive()."""
        arguments, keep = self._message(writable, data, source, tag, dtype, options)
        return Request(self, library.trireme_receive_start, arguments, keep)
