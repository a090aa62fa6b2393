"""The parameters of a model by name, as one piece of memory: of the host, or of its device."""

from __future__ import annotations

from ctypes import c_void_p
from math import prod
from typing import Any, Mapping, NamedTuple

from . import _native
from ._buffer import Buffer, cast
from ._device_memory import copy_memory
from ._errors import check
from ._native import library
from ._operation import given
from ._values import LETTERS, check_shape, dtype_name, in_range, size_of

_NARROW = (_native.TRIREME_DTYPE_F16, _native.TRIREME_DTYPE_BF16)


class Place(NamedTuple):
    """Where a parameter lies among the bytes of all."""

    first: int
    end: int
    dtype: int
    shape: tuple[int, ...]


def places_of(described: Mapping[str, tuple[int, tuple[int, ...]]]) -> dict[str, Place]:
    """By name, of parameters in the order added: their dtypes and shapes are given."""
    places = {}
    end = 0
    for name, (code, shape) in described.items():
        first, end = end, end + prod(shape) * size_of(code)
        places[name] = Place(first, end, code, shape)
    return places


class _All:
    """Memory for the bytes of all parameters, where the ranks work."""

    def __init__(self, model: Any, places: Mapping[str, Place]) -> None:
        self.count = max((place.end for place in places.values()), default=0)
        self.model = model
        self.buffer = None if model._device is None else Buffer(model._ranks, self.count)
        self.memory = memoryview(bytearray(self.count if self.buffer is None else 0))

    @property
    def address(self) -> Any:
        if self.buffer is not None:
            return c_void_p(self.buffer._address)
        return c_void_p(_native.address_of(self.memory))

    def put(self, name: str, place: Place, value: Any) -> None:
        """A value of the host; of a device also one of the device."""
        view, address, _, code = given(self.model, value, None, repr(name), self.model._order())
        if code != place.dtype and not (
            code == _native.TRIREME_DTYPE_U16 and place.dtype in _NARROW
        ):
            raise ValueError(
                f"{name!r} is {dtype_name(place.dtype)}, and the value {dtype_name(code)}"
            )
        size = place.end - place.first
        if view.nbytes != size:
            raise ValueError(f"{name!r} has {size} bytes, and the value {view.nbytes}")
        if view.ndim > 1:
            check_shape(view, code, place.shape, "the value", repr(name))
        if self.buffer is not None:
            target = (self.buffer._address or 0) + place.first
            # The owner has made the value good in this stream alone.
            stream = self.model._stream.number
            copy_memory(self.model._ranks, target, address, size, view, stream)
        else:
            self.memory[place.first : place.end] = view.tobytes()

    def get(self, place: Place) -> Any:
        """Memory of the host as a memoryview, that of a device as a DeviceArray."""
        if self.buffer is not None:
            return self.buffer.array(place.dtype, place.shape, at=place.first)
        letter, shape = LETTERS[place.dtype], place.shape if place.end > place.first else None
        return cast(self.memory[place.first : place.end], letter, shape)


def broadcast(
    model: Any, places: Mapping[str, Place], values: Mapping[str, Any] | None, root: int
) -> None:
    """Gives every rank the values of the root."""
    address = None
    count = max((place.end for place in places.values()), default=0)
    whole: _All | None = None
    if values is not None:
        for name in places:
            if name not in values:
                raise ValueError(f"there is no value for parameter {name!r}")
        if unknown := [name for name in values if name not in places]:
            raise ValueError(f"the model has no parameter {unknown[0]!r} of its own")
        whole = _All(model, places)
        for name, place in places.items():
            whole.put(name, place, values[name])
        address = whole.address
    check(
        library.trireme_model_broadcast_parameters(
            model._handle, address, count, _native.TRIREME_DTYPE_BYTES, in_range(root, 31, "root")
        )
    )
    del whole


def gather(model: Any, places: Mapping[str, Place]) -> dict[str, Any]:
    """All parameters, whole."""
    whole = _All(model, places)
    check(
        library.trireme_model_gather_parameters(
            model._handle, whole.address, whole.count, _native.TRIREME_DTYPE_BYTES
        )
    )
    return {name: whole.get(place) for name, place in places.items()}
