"""Ranks arranged in named axes."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import byref, c_char_p, c_int32, c_uint64, c_void_p
from typing import Any, Mapping, Sequence

from . import _native
from ._communicator import Communicator, adopted, group_options
from ._errors import InvalidHandleError, check
from ._fields import instance
from ._native import library
from ._values import Name, encoded, in_range, nanoseconds, number_of

MESH_ORDERS = {
    "by_name": _native.TRIREME_MESH_ORDER_BY_NAME,
    "last_fastest": _native.TRIREME_MESH_ORDER_LAST_FASTEST,
    "first_fastest": _native.TRIREME_MESH_ORDER_FIRST_FASTEST,
}


def _names(axes: Sequence[str] | str) -> tuple[Any, int]:
    names = [axes] if isinstance(axes, str) else list(axes)
    return (c_char_p * len(names))(*(encoded(name) for name in names)), len(names)


class Mesh:
    """Gives each rank one coordinate on each axis, and a communicator along each axis.

    `axes` maps names to sizes; one size may be 0: that axis gets the other ranks. With the order
    "by_name" the axis "tensor" is fastest, then "context", "expert", "shard", "data" and
    "pipeline". Other names are slower than these, and the last one of them is fastest. All ranks of
    the communicator give the same axes. Use it in a `with` block, or call close().

    >>> with Communicator(0, 1, "local://mesh-doctest") as group, Mesh(group, {"data": 0}) as mesh:
    ...     mesh.axis_size("data"), mesh.coordinates(0), mesh.communicator("data").world_size
    (1, {'data': 0}, 1)
    """

    def __init__(
        self,
        communicator: Communicator,
        axes: Mapping[str, int],
        *,
        order: Name = "by_name",
        timeout: float | None = None,
    ) -> None:
        instance(Communicator, communicator, "communicator")
        names, count = _names(list(axes))
        sizes = (c_int32 * count)(*(in_range(size, 31, "size") for size in axes.values()))
        options = _native.trireme_mesh_options(
            struct_size=ctypes.sizeof(_native.trireme_mesh_options),
            axis_count=count,
            order=number_of(order, MESH_ORDERS, "order"),
            axis_names=names,
            axis_sizes=sizes,
            timeout_ns=nanoseconds(timeout),
        )
        handle = c_void_p()
        check(library.trireme_mesh_create(communicator._handle, byref(options), byref(handle)))
        self._handle = handle.value
        self._close = weakref.finalize(self, library.trireme_mesh_destroy, self._handle)
        self._axes = tuple(axes)
        self._world_size = communicator.world_size

    def close(self) -> None:
        """Leaves the communicators of the axes."""
        self._close()

    def __enter__(self) -> Mesh:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes, in the order given."""
        return self._axes

    def axis_size(self, axis: str) -> int:
        """Ranks along an axis."""
        size = c_int32()
        check(library.trireme_mesh_get_axis_size(self._handle, encoded(axis), byref(size)))
        return size.value

    def coordinates(self, rank: int) -> dict[str, int]:
        """A rank's place on every axis."""
        places = (c_int32 * len(self._axes))()
        number = in_range(rank, 31, "rank")
        check(library.trireme_mesh_get_coordinates(self._handle, number, places, len(places)))
        return dict(zip(self._axes, places))

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """The rank at a place, which names every axis."""
        if set(coordinates) != set(self._axes):
            raise ValueError(f"coordinates of {list(coordinates)} for axes {list(self._axes)}")
        places = (c_int32 * len(self._axes))(
            *(in_range(coordinates[axis], 31, "coordinate") for axis in self._axes)
        )
        rank = c_int32()
        check(library.trireme_mesh_get_rank(self._handle, places, len(places), byref(rank)))
        return rank.value

    def group(self, axes: Sequence[str] | str, rank: int) -> list[int]:
        """The ranks that differ from `rank` at most on one axis or several, ascending."""
        names, count = _names(axes)
        ranks = (c_int32 * self._world_size)()
        found = c_uint64()
        number = in_range(rank, 31, "rank")
        check(
            library.trireme_mesh_get_group(
                self._handle, names, count, number, ranks, len(ranks), byref(found)
            )
        )
        return list(ranks[: found.value])

    def communicator(self, axis: str) -> Communicator:
        """The communicator along one axis. It belongs to the mesh and ends with it."""
        handle = c_void_p()
        check(
            library.trireme_mesh_get_axis_communicator(self._handle, encoded(axis), byref(handle))
        )
        found = adopted(handle, self)
        if found is None:
            raise InvalidHandleError("no communicator", _native.TRIREME_ERROR_INVALID_HANDLE)
        return found

    def make_communicator(
        self, axes: Sequence[str], *, name: str | None = None, timeout: float | None = None
    ) -> Communicator:
        """A new communicator over several axes together. Called by all ranks of the mesh."""
        names, count = _names(axes)
        options = group_options(name, timeout)
        handle = c_void_p()
        check(
            library.trireme_mesh_create_communicator(
                self._handle, names, count, byref(options), byref(handle)
            )
        )
        made = adopted(handle)
        if made is None:
            raise InvalidHandleError("no communicator", _native.TRIREME_ERROR_INVALID_HANDLE)
        return made
