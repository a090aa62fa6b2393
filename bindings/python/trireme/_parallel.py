"""Data, shard, tensor, pipeline, context and expert parallelism in one object."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import byref, c_double, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any, Iterable, NamedTuple, Sequence

from . import _native
from ._callers import Caller, ProductFunction
from ._communicator import Communicator, adopted, group_options
from ._errors import InvalidArgumentError, InvalidHandleError, check
from ._fields import instance
from ._native import library
from ._pipeline import (
    PIPELINE_PLACEMENTS,
    LayerCosts,
    Partition,
    PipelineCosts,
    PipelineSchedule,
    NativeCosts,
    native_layers,
    order_name,
    pipeline_order,
)
from ._tensor import Tensor, native_options, provider_of
from ._values import in_range, nanoseconds, number_of

#: A size of Parallel: the ranks that the other axes leave.
REST: int = _native.TRIREME_PARALLEL_REST

#: Names of the axes, in the order of coordinates.
PARALLEL_AXES = ("data", "shard", "tensor", "pipeline", "context", "expert")

_GROUPS = {
    "gradients": _native.TRIREME_PARALLEL_GROUP_GRADIENTS,
    "expert_gradients": _native.TRIREME_PARALLEL_GROUP_EXPERT_GRADIENTS,
    "all": _native.TRIREME_PARALLEL_GROUP_ALL,
}

#: Parallel has methods of that name.
_Range = range


class TensorOptions(NamedTuple):
    """How the ranks along "tensor" split layers: see Tensor."""

    blocks: int = 0  #: Blocks of every extent; 0 is one for each rank.
    gemm: str | ProductFunction | None = None  #: "builtin", "loaded" or a function, as for Tensor.
    library_name: str | None = None  #: File of the BLAS.
    gemm_threads: int = 0  #: Its threads.
    sequence: bool = False  #: Splits activations between layers by rows.
    keep_gathered: bool = False  #: Keeps the gathered inputs for backward.
    row_tile: int = 0  #: Rows that are multiplied and exchanged at a time; 0 is automatic.
    timeout: float | None = None  #: Seconds of a pass.


class ParallelInfo(NamedTuple):
    """Where a rank is, and what is around it."""

    world_size: int  #: Ranks of the object.
    rank: int  #: This rank's number among them.
    sizes: dict[str, int]  #: Ranks along each axis.
    coordinates: dict[str, int]  #: This rank's place on each axis.
    readers: int  #: Ranks with rows of their own.
    reader: int  #: This rank's number among them.
    gradient_ranks: int  #: Ranks over which gradients are added up.
    expert_gradient_ranks: int  #: The same for experts.
    micro_batches: int  #: Micro-batches of a step for each reader.
    stages: int  #: Stages of all ranks along "pipeline".
    own_stages: tuple[int, ...]  #: Those of this rank.
    has_first_stage: bool  #: Whether this rank reads the rows.
    has_last_stage: bool  #: Whether this rank computes the loss.
    has_tensor: bool  #: Whether there is a tensor object.
    order: str | None  #: Of the schedule; None without a pipeline, and for a text.
    kept_micro_batches: int  #: The most that this rank keeps, each stage counted.
    makespan: float  #: Time of a step.
    span: float  #: The longest time from a rank's first action to its last one.
    bubble: float  #: The part of the time in which ranks wait.


def _mask(axes: str | Iterable[str]) -> int:
    mask = 0
    for axis in [axes] if isinstance(axes, str) else axes:
        if axis in _GROUPS:
            mask |= _GROUPS[axis]
        elif axis in PARALLEL_AXES:
            mask |= 1 << PARALLEL_AXES.index(axis)
        else:
            raise InvalidArgumentError(
                f"axis {axis!r} is none of {', '.join((*PARALLEL_AXES, *_GROUPS))}",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
    return mask


class Parallel:
    """Arranges the ranks of a communicator along six axes, with all that training on them needs.

    One size may be REST: that axis gets the ranks that the others leave. All ranks give the same
    options. The object has a group of all its ranks: if one of them dies, waits along all axes end.
    Use it in a `with` block, or call close().

    >>> with Communicator(0, 1, "local://parallel-doctest") as group:
    ...     with Parallel(group, data=REST, micro_batches=4) as parallel:
    ...         parallel.info.sizes["data"], parallel.rows(8, 1)
    (1, range(2, 4))
    """

    def __init__(
        self,
        communicator: Communicator,
        *,
        data: int = 1,
        shard: int = 1,
        tensor: int = 1,
        pipeline: int = 1,
        context: int = 1,
        expert: int = 1,
        micro_batches: int = 0,
        stages_per_rank: int = 0,
        schedule: str | PipelineSchedule | None = None,
        placement: str | None = None,
        costs: PipelineCosts | None = None,
        activation_limit_bytes: int = 0,
        tensor_options: TensorOptions | None = None,
        timeout: float | None = None,
    ) -> None:
        """`schedule` is the name of an order, such as "zbv", or a schedule. "best" searches one for
        `costs`. Without it the order is "1f1b", or "interleaved" if ranks have several stages.

        With `costs` no rank may keep more than `activation_limit_bytes`. partition() makes stages
        that do not.
        """
        instance(Communicator, communicator, "communicator")
        options = _native.trireme_parallel_options(
            struct_size=ctypes.sizeof(_native.trireme_parallel_options),
            micro_batches=in_range(micro_batches, 32, "micro_batches"),
            stages_per_rank=in_range(stages_per_rank, 32, "stages_per_rank"),
            activation_limit_bytes=in_range(activation_limit_bytes, 64, "activation_limit_bytes"),
            timeout_ns=nanoseconds(timeout),
        )
        sizes = (data, shard, tensor, pipeline, context, expert)
        for axis, size in zip(PARALLEL_AXES, sizes):
            setattr(options, axis, size if size == REST else in_range(size, 31, axis))
        if isinstance(schedule, PipelineSchedule):
            options.schedule_text = schedule.write("text").encode()
        elif schedule is not None:
            options.order = pipeline_order(schedule)
        if placement is not None:
            options.placement = number_of(placement, PIPELINE_PLACEMENTS, "placement")
        kept: list[Any] = []  # what the options point to
        if costs is not None:
            kept.append(NativeCosts(costs))
            options.costs = ctypes.pointer(kept[-1].native)
        self._products: Caller | None = None
        if tensor_options is not None:
            name, self._products = provider_of(tensor_options.gemm)
            named = tensor_options._replace(gemm=name)
            kept.append(native_options(*named, products=self._products))
            options.tensor_options = ctypes.pointer(kept[-1])
        handle = c_void_p()
        check(library.trireme_parallel_create(communicator._handle, byref(options), byref(handle)))
        self._handle = handle.value
        self._close = weakref.finalize(self, library.trireme_parallel_destroy, self._handle)
        self._sequence = tensor_options is not None and tensor_options.sequence

    def close(self) -> None:
        """Leaves the communicators of the axes."""
        self._close()

    def __enter__(self) -> Parallel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _info(self) -> _native.trireme_parallel_info:
        found = _native.trireme_parallel_info(
            struct_size=ctypes.sizeof(_native.trireme_parallel_info)
        )
        check(library.trireme_parallel_get_info(self._handle, byref(found)))
        return found

    @property
    def info(self) -> ParallelInfo:
        """Sizes, this rank's coordinates and stages, and figures of the schedule."""
        found = self._info()
        values = {
            name: getattr(found, name)
            for name in ParallelInfo._fields
            if name not in ("sizes", "coordinates")
        }
        for name in ("has_first_stage", "has_last_stage", "has_tensor"):
            values[name] = bool(values[name])
        values["own_stages"] = tuple(self.stages(found.pipeline_rank))
        values["order"] = order_name(found.order) if found.order != 0 else None
        return ParallelInfo(
            sizes={axis: getattr(found, axis) for axis in PARALLEL_AXES},
            coordinates={axis: getattr(found, f"{axis}_rank") for axis in PARALLEL_AXES},
            **values,
        )

    def coordinates(self, rank: int) -> dict[str, int]:
        """A rank's place on every axis."""
        places = (c_int32 * len(PARALLEL_AXES))()
        number = in_range(rank, 31, "rank")
        check(library.trireme_parallel_get_coordinates(self._handle, number, places, len(places)))
        return dict(zip(PARALLEL_AXES, places))

    def rank(self, **coordinates: int) -> int:
        """The rank at a place. An axis that is not named has coordinate 0."""
        unknown = set(coordinates) - set(PARALLEL_AXES)
        if unknown:
            raise InvalidArgumentError(
                f"{sorted(unknown)} are no axes", _native.TRIREME_ERROR_INVALID_ARGUMENT
            )
        places = (c_int32 * len(PARALLEL_AXES))(
            *(in_range(coordinates.get(axis, 0), 31, axis) for axis in PARALLEL_AXES)
        )
        rank = c_int32()
        check(library.trireme_parallel_get_rank(self._handle, places, len(places), byref(rank)))
        return rank.value

    def communicator(self, axes: str | Sequence[str]) -> Communicator:
        """The communicator along an axis, or of "gradients", "expert_gradients" or "all".

        It belongs to the object and ends with it.
        """
        handle = c_void_p()
        check(library.trireme_parallel_get_communicator(self._handle, _mask(axes), byref(handle)))
        found = adopted(handle, self)
        if found is None:
            raise InvalidHandleError("no communicator", _native.TRIREME_ERROR_INVALID_HANDLE)
        return found

    def make_communicator(
        self,
        axes: str | Sequence[str],
        *,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Communicator:
        """A new communicator over several axes together. Called by all ranks of the object."""
        options = group_options(name, timeout)
        handle = c_void_p()
        check(
            library.trireme_parallel_create_communicator(
                self._handle, _mask(axes), byref(options), byref(handle)
            )
        )
        made = adopted(handle)
        if made is None:
            raise InvalidHandleError("no communicator", _native.TRIREME_ERROR_INVALID_HANDLE)
        return made

    def tensor(self) -> Tensor:
        """The tensor object of the ranks along "tensor"."""
        handle = c_void_p()
        check(library.trireme_parallel_get_tensor(self._handle, byref(handle)))
        tensor = Tensor.__new__(Tensor)
        tensor._own(handle, self._info().tensor_rank, self._sequence)
        tensor._products = self._products
        return tensor

    def schedule(self) -> PipelineSchedule:
        """The schedule of the pipeline."""
        handle = c_void_p()
        check(library.trireme_parallel_get_schedule(self._handle, byref(handle)))
        schedule = PipelineSchedule.__new__(PipelineSchedule)
        schedule._own(handle)
        return schedule

    def stages(self, pipeline_rank: int | None = None) -> list[int]:
        """The stages of a rank along "pipeline", or of this rank."""
        number = self._info().pipeline_rank if pipeline_rank is None else pipeline_rank
        count = c_uint64()
        call = library.trireme_parallel_get_stages
        check(call(self._handle, in_range(number, 31, "pipeline_rank"), None, 0, byref(count)))
        stages = (c_uint32 * count.value)()
        check(call(self._handle, number, stages, count, byref(count)))
        return list(stages)

    def stage_rank(self, stage: int) -> int:
        """The rank that has a stage of this rank's pipeline."""
        rank = c_int32()
        number = in_range(stage, 32, "stage")
        check(library.trireme_parallel_get_stage_rank(self._handle, number, byref(rank)))
        return rank.value

    def partition(self, layers: Sequence[LayerCosts]) -> Partition:
        """Cuts layers into the stages of the pipeline. Called by all ranks of the object.

        The largest number of all ranks counts. So a rank may give 0 for layers that it has not
        measured.
        """
        count = self._info().stages + 1
        cuts = (c_uint64 * count)()
        seconds = c_double()
        check(
            library.trireme_parallel_partition(
                self._handle, native_layers(layers), len(layers), cuts, count, byref(seconds)
            )
        )
        return Partition(list(cuts), seconds.value)

    def layers(self, partition: Partition) -> dict[int, range]:
        """The layers of each of this rank's stages."""
        cuts = partition.cuts
        return {stage: _Range(cuts[stage], cuts[stage + 1]) for stage in self.stages()}

    def rows(self, rows: int, micro_batch: int = 0) -> range:
        """The rows of one of this rank's micro-batches, of a global batch of `rows`."""
        first, count = c_uint64(), c_uint64()
        check(
            library.trireme_parallel_get_rows(
                self._handle,
                in_range(rows, 64, "rows"),
                in_range(micro_batch, 32, "micro_batch"),
                byref(first),
                byref(count),
            )
        )
        return _Range(first.value, first.value + count.value)
