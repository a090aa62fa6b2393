"""Memory of CUDA devices that other libraries own, by their protocols, and streams."""

from __future__ import annotations

from math import prod
from typing import Any

from . import _dlpack, _native
from ._errors import TriremeError, last_failure
from ._native import library
from ._values import (
    LETTERS,
    Dtype,
    code_of_name,
    dtype_name,
    dtype_number,
    in_range,
    readable,
    size_of,
)

# DLPack tells these apart, though their elements have one size.
_NARROW = tuple(dtype_number(name) for name in ("f16", "bf16", "f8e4m3", "f8e5m2"))

# Letters of typestr in __cuda_array_interface__, as types of DLPack.
_LETTERS = {"i": 0, "u": 1, "f": 2, "b": 6}
_LEGACY = 1  #: The default stream of a device, as protocols number it.


class DeviceView:
    """An array in memory of a device. It keeps the memory, and answers as a memoryview does."""

    def __init__(
        self,
        owner: object,
        address: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        code: int | None,
        itemsize: int,
        readonly: bool,
        copied: bool = False,
    ) -> None:
        """Without a `code` the elements have only a size. `strides` count elements."""
        self.owner = owner
        self.address = address
        self.shape = shape
        self.code = code
        self.itemsize = itemsize
        self.readonly = readonly
        self.copied = copied
        self.ndim = len(shape)
        self.count = prod(shape)
        self.nbytes = self.count * itemsize
        self.c_contiguous = _is_contiguous(shape, strides)

    @property
    def format(self) -> str:
        """The letter under which memory of the host would show."""
        if self.code is None:
            return {1: "B", 2: "H", 4: "I", 8: "Q"}.get(self.itemsize, "V")
        return LETTERS[self.code]


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides or ())):
        if extent != 1 and stride != step:
            return prod(shape) == 0
        step *= extent
    return True


# ---- streams -------------------------------------------------------------------------------


def stream_number(stream: Any) -> int:
    """The address of a cudaStream_t: a number, or an object of torch, cupy, numba or cuda.core."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        stream = (protocol() if callable(protocol) else protocol)[1]
    for name in ("cuda_stream", "ptr", "handle", "value"):
        stream = getattr(stream, name, stream)
    if stream is None:
        stream = 0  # ctypes' address of NULL
    if not isinstance(stream, int):
        raise TypeError(f"stream {stream!r} is no number and no stream of a known library")
    return in_range(stream, 64, "stream")


class CallerStream:
    """The stream that calls of a model follow. It keeps the other library's object of the stream."""

    def __init__(self) -> None:
        self.number = 0  # the default stream
        self.owner: Any = None

    def is_that_of(self, stream: int | None) -> bool:
        """Whether a protocol's number names this stream; None is the default one."""
        return (stream or _LEGACY) == (self.number or _LEGACY)


def _fix_stream(options: Any, stream: int, what: str) -> None:
    """The one stream of a call: that of its options, or else of the first array that has one."""
    given = options.get("stream")
    if given is not None and (stream_number(given) or _LEGACY) != (stream or _LEGACY):
        raise ValueError(
            f"{what} has its work in stream {stream}, but the call is in stream "
            f"{stream_number(given)}; let that stream wait for it, and hand the array over there"
        )
    if given is None:
        options["stream"] = stream


# ---- arrays --------------------------------------------------------------------------------


def _by_dlpack(data: Any, kind: int, options: Any, what: str) -> DeviceView:
    arguments: dict[str, Any] = {}
    if kind != _dlpack.CUDA_HOST:  # the owner lets the stream wait for its own work
        given = options.get("stream")
        stream = (0 if given is None else stream_number(given)) or _LEGACY
        _fix_stream(options, stream, what)
        arguments["stream"] = stream
    try:
        capsule = data.__dlpack__(max_version=(1, 0), **arguments)
    except TypeError:  # older than that argument
        capsule = data.__dlpack__(**arguments)
    array = _dlpack.Array(capsule)
    code = _dlpack.DTYPE_OF_TYPE.get(array.type) if array.lanes == 1 else None
    if code is None:
        raise TypeError(f"{what} has elements of DLPack's type {array.type}, which has no dtype")
    return DeviceView(
        (data, array),
        array.address,
        array.shape,
        array.strides,
        code,
        size_of(code),
        array.readonly,
        array.copied,
    )


def _by_interface(data: Any, interface: Any, options: Any, what: str) -> DeviceView:
    order, letter, size = interface["typestr"][0], interface["typestr"][1], 0
    try:
        size = int(interface["typestr"][2:])
    except ValueError:
        pass
    code = _dlpack.DTYPE_OF_TYPE.get((_LETTERS.get(letter, -1), 8 * size))
    if size < 1 or order not in "<|=" or (code is None and letter != "V"):
        raise TypeError(f"{what} has elements of {interface['typestr']!r}, which have no dtype")
    if interface.get("mask") is not None:
        raise TypeError(f"{what} has a mask")
    stream = interface.get("stream")
    if stream == 0:
        raise ValueError(f"{what} names stream 0, which __cuda_array_interface__ forbids")
    if stream is not None:
        _fix_stream(options, stream, what)
    address, readonly = interface["data"]
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is not None:
        strides = tuple(s // size if s % size == 0 else -1 for s in strides)
    return DeviceView(data, address or 0, shape, strides, code, size, readonly)


def device_operand(
    data: Any, dtype: Dtype | None, what: str, options: Any, writes: bool
) -> tuple[Any, int | None, int, int] | None:
    """View, address, count and dtype of memory that a device reaches; None for any other object.

    The options of the call get the stream behind which the memory is good.
    """
    kind = 0
    if hasattr(data, "__dlpack__") and hasattr(data, "__dlpack_device__"):
        kind = int(data.__dlpack_device__()[0])
    if kind in (_dlpack.CUDA, _dlpack.CUDA_HOST, _dlpack.CUDA_MANAGED):
        view = _by_dlpack(data, kind, options, what)
    else:
        interface = getattr(data, "__cuda_array_interface__", None)
        if interface is None:
            return None
        view = _by_interface(data, interface, options, what)
    if not view.c_contiguous:
        raise ValueError(f"{what} is not contiguous; copy it first, for example by .contiguous()")
    if writes and view.readonly:
        raise TypeError(f"{what} is read-only, and the operation writes to it; pass a copy")
    if writes and view.copied:
        raise ValueError(f"{what} comes as a copy, and the operation writes to the array itself")
    code = view.code
    if dtype is not None and dtype_number(dtype) != code:
        if code in _NARROW:  # others may stand for bits of the same size
            raise TypeError(f"{what} has elements of type {dtype_name(code)}, not {dtype}")
        code = code_of_name(view, dtype, what)
    if code is None:
        raise TypeError(f"{what} does not tell the type of its elements; name it by dtype=")
    return view, view.address or None, view.nbytes // (size_of(code) or 1), code


# ---- failures ------------------------------------------------------------------------------

# Arrays of failed calls, which the device may still read or write. They stay as long as the process.
_kept: list[Any] = []
_LATE = (_native.TRIREME_ERROR_TIMEOUT, _native.TRIREME_ERROR_DEVICE)


def _on_device(keep: Any) -> bool:
    if isinstance(keep, (tuple, list)):
        return any(_on_device(each) for each in keep)
    return isinstance(keep, DeviceView)


def failed(code: int, keep: Any) -> TriremeError:
    """last_failure(), and memory of a device stays where the device may still be at work."""
    failure = last_failure(code)
    if (code in _LATE or "the device may still" in failure.message) and _on_device(keep):
        _kept.append(keep)
    return failure


def copy_memory(
    ranks: Any, to: int | None, source: int | None, nbytes: int, keep: Any, stream: int = 0
) -> None:
    """Between host and device, behind a stream: 0 is the default one. `keep` holds the memory.

    Of 0 bytes it only waits for the stream.
    """
    code = library.trireme_memory_copy(ranks._handle, to, source, nbytes, stream or None)
    if code:
        raise failed(code, keep)


# ---- memory of the library -----------------------------------------------------------------


def cast(view: Any, letter: str, shape: tuple[int, ...] | None = None) -> memoryview[Any]:
    """Bytes as elements, in a shape without an extent of 0."""
    if shape is not None:
        return view.cast(letter, shape)  # type: ignore[no-any-return]
    return view if letter == "B" else view.cast(letter)  # type: ignore[no-any-return]


class DeviceArray:
    """Elements of a Buffer or Model in memory that a device reaches, for other libraries.

    torch.from_dlpack(), cupy.from_dlpack() and jax.dlpack.from_dlpack() make their arrays of it
    without a copy, and so does cupy.asarray(). It keeps the memory. to_host() and copy_from() need
    no other library; they work as long as the communicator is open.

    That of a Model follows the model's stream, which is the default one until Model.set_stream()
    names another. A library that takes the array in another stream waits, as a gathered unit may
    still be on its way: __dlpack__() waits itself, __cuda_array_interface__ names the stream.
    """

    def __init__(
        self,
        owner: object,
        address: int | None,
        shape: tuple[int, ...],
        code: int,
        device: tuple[int, int],
        ranks: Any = None,
        behind: CallerStream | None = None,
    ) -> None:
        """`behind` is the stream of a model; without one all operations have ended."""
        self._behind = behind
        self._ranks = ranks
        self._owner = owner
        self._address = address
        self._code = code
        self._device = device
        self.shape = shape

    def _group(self) -> Any:
        if self._ranks is None:
            raise TypeError("this memory came from a call, and has no communicator to copy it by")
        return self._ranks

    @property
    def _stream(self) -> int:
        return 0 if self._behind is None else self._behind.number

    def to_host(self) -> memoryview[Any]:
        """Its elements in new memory of the host, in its shape. f16 and bf16 show as integers.

        Waits for the work in the model's stream; of a Buffer in the device's default stream.
        """
        size = prod(self.shape) * size_of(self._code)
        memory = memoryview(bytearray(size))
        target = _native.address_of(memory)
        copy_memory(self._group(), target, self._address, size, self, self._stream)
        return cast(memory, LETTERS[self._code], self.shape if size else None)

    def copy_from(self, values: Any, *, dtype: Dtype | None = None) -> None:
        """Copies as many elements of its type into it: from memory of the host, or of the device.

        Waits as to_host() does. `dtype` names what Python has no type for.
        """
        group = self._group()
        found = device_operand(values, dtype, "values", {"stream": self._stream}, False)
        view, address, count, code = found or readable(values, dtype, "values")
        bits = code == _native.TRIREME_DTYPE_U16 and size_of(self._code) == 2
        if code != self._code and not bits:
            raise TypeError(
                f"values have elements of type {dtype_name(code)}, not {dtype_name(self._code)}"
            )
        if count != prod(self.shape):
            raise ValueError(f"values have {count} elements, not {prod(self.shape)}")
        size = count * size_of(code)
        copy_memory(group, self._address, address, size, (view, self), self._stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule. Waits for the model's stream, unless `stream` is that one, or -1: no wait."""
        if self._device[0] == _dlpack.CUDA and stream == 0:
            raise ValueError("stream 0 is ambiguous: 1 is the legacy default stream")
        if copy:
            raise BufferError("the memory is given without a copy")
        if dl_device is not None and tuple(dl_device) != self._device:
            raise BufferError(f"the memory is on device {self._device}, not on {dl_device}")
        if self._code not in _dlpack.TYPES:
            raise BufferError("bytes are no elements of DLPack; name another dtype")
        # Operations end before they return, but a unit's copy ends later, in the model's stream.
        if self._behind is not None and stream != -1 and not self._behind.is_that_of(stream):
            copy_memory(self._group(), None, None, 0, self, self._stream)
        return _dlpack.capsule_of(
            self._address, self.shape, self._code, self._device, self._owner, max_version
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        kind, bits = _dlpack.TYPES.get(self._code, (1, 8))
        letter = {number: letter for letter, number in _LETTERS.items()}.get(kind)
        if self._device[0] != _dlpack.CUDA or letter is None:
            raise AttributeError("this memory has no __cuda_array_interface__")
        order = "|" if bits == 8 else "<"
        return {
            "shape": self.shape,
            "typestr": f"{order}{letter}{bits // 8}",
            "data": (self._address or 0, False),
            "strides": None,
            "version": 3,
            "stream": None if self._behind is None else self._stream or _LEGACY,
        }


def refuse_view() -> TypeError:
    return TypeError(
        "the host cannot read memory of a device; Buffer.array() gives it to other libraries"
    )
