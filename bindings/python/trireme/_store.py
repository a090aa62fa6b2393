"""The job's small key-value store."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import byref, c_char, c_char_p, c_int32, c_int64, c_uint64, c_void_p
from typing import Any, Callable, Sequence

from . import _native
from ._errors import check
from ._native import library
from ._values import FOREVER_NS, encoded, nanoseconds

#: Most values fit, so that one call gets them.
_FIRST_ROOM = 4096


class Store:
    """Keys and values that all processes of a job share; made by serve() or connect().

    Needs the job's token: TRIREME_TOKEN_FILE, TRIREME_TOKEN_FD or TRIREME_TOKEN. Any method may be
    called from any thread; one that waits keeps no other waiting. Use it in a `with` block, or call
    close().
    """

    def __init__(self, open_store: Callable[..., int], url: str | None, timeout: float | None):
        options = _native.trireme_store_options(
            struct_size=ctypes.sizeof(_native.trireme_store_options),
            timeout_ns=nanoseconds(timeout),
        )
        handle = c_void_p()
        text = None if url is None else encoded(url)
        check(open_store(text, byref(options), byref(handle)))
        self._handle = handle.value
        self._close = weakref.finalize(self, library.trireme_store_destroy, self._handle)

    @classmethod
    def serve(cls, url: str | None = None, *, timeout: float | None = None) -> Store:
        """Serves a store at "tcp://ADDRESS:PORT", by default at a port of the loopback that the
        system chooses; `timeout` is the longest that any call may take."""
        return cls(library.trireme_store_serve, url, timeout)

    @classmethod
    def connect(cls, url: str | None = None, *, timeout: float | None = None) -> Store:
        """Connects to "tcp://ADDRESS:PORT", "file:///PATH" or "env://", the default, and waits
        until it is there."""
        return cls(library.trireme_store_connect, url, timeout)

    def close(self) -> None:
        """Leaves the store; one that is served from here is gone for all."""
        self._close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """The URL by which others connect."""
        length = c_uint64()
        check(library.trireme_store_get_address(self._handle, None, 0, byref(length)))
        text = ctypes.create_string_buffer(length.value + 1)
        check(library.trireme_store_get_address(self._handle, text, len(text), None))
        return text.value.decode()

    def set(self, key: str, value: bytes | str) -> None:
        """Puts a value under a key; text becomes UTF-8."""
        data = _bytes(value)
        check(library.trireme_store_set(self._handle, encoded(key), data, len(data)))

    def get(self, key: str) -> bytes | None:
        """The value of a key, or None if it has none. Does not wait for the key."""
        size, found, room = c_uint64(), c_int32(), _FIRST_ROOM
        while True:
            memory = (c_char * room)()
            check(
                library.trireme_store_get(
                    self._handle, encoded(key), memory, room, byref(size), byref(found)
                )
            )
            if not found.value:
                return None
            if size.value <= room:
                return memory.raw[: size.value]
            room = size.value

    def wait(self, keys: Sequence[str] | str, timeout: float | None = None) -> None:
        """Waits until all of these keys have a value; without `timeout` as long as it takes."""
        names = [keys] if isinstance(keys, str) else list(keys)
        array: Any = (c_char_p * len(names))(*(encoded(name) for name in names))
        limit = FOREVER_NS if timeout is None else nanoseconds(timeout)
        check(library.trireme_store_wait(self._handle, array, len(names), limit))

    def add(self, key: str, amount: int = 1) -> int:
        """Adds to the number under a key, 0 if there is none, and answers the sum."""
        if not -(1 << 63) <= amount < 1 << 63:
            raise OverflowError(f"amount {amount} has more than 64 bits")
        total = c_int64()
        check(library.trireme_store_add(self._handle, encoded(key), amount, byref(total)))
        return total.value

    def compare_exchange(self, key: str, expected: bytes | str | None, value: bytes | str) -> bool:
        """Puts `value` there if the key has the value `expected`, or none for None; tells whether
        it did."""
        old, new = None if expected is None else _bytes(expected), _bytes(value)
        exchanged = c_int32()
        check(
            library.trireme_store_compare_exchange(
                self._handle, encoded(key), old, len(old or b""), new, len(new), byref(exchanged)
            )
        )
        return bool(exchanged.value)

    def delete(self, key: str) -> bool:
        """Takes a key and its value away; tells whether it had one."""
        deleted = c_int32()
        check(library.trireme_store_delete(self._handle, encoded(key), byref(deleted)))
        return bool(deleted.value)


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(memoryview(value))
