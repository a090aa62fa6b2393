"""A model whose parameters, gradients and optimizer state are spread over ranks."""

from __future__ import annotations

import array
import contextlib
import ctypes
import os
import weakref
from ctypes import byref, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Protocol, Sequence, Union

from . import _dlpack, _hook, _named_parameters, _native, _request
from ._abi.options import Buckets, Offload, Shards, Units
from ._abi.rule_options import RULES
from ._buffer import Buffer, Owner, view_of
from ._communicator import Communicator
from ._device_memory import CallerStream, DeviceArray, failed, stream_number
from ._errors import (
    InvalidArgumentError,
    InvalidHandleError,
    TriremeError,
    caused,
    check,
    last_failure,
)
from ._fields import bits_of, instance, options_of, pointer_to, whole
from ._mesh import Mesh
from ._model_reports import ModelInfo, ModelMemory, ModelStatistics, UnitInfo
from ._parallel import Parallel
from ._native import library
from ._offload import OffloadInfo, _offload_info
from ._operation import CallOptions, given, taken
from ._values import (
    DTYPES,
    GRADIENTS,
    LETTERS,
    UNUSED,
    Dtype,
    Name,
    check_shape,
    dtype_name,
    dtype_number,
    encoded,
    in_range,
    nanoseconds,
    nearest,
    number_of,
    size_of,
    wrong_dtype,
)

Which = Union[str, int]  #: A parameter or unit by its name or number.


class Split(NamedTuple):
    """A placement: this rank holds a part of one `dimension` of a parameter.

    The dimension has `extent` indices in the whole parameter. `stretches` are pairs (first index,
    count) of those that lie here, in their order here. A fused matrix of queries, keys and values
    has three.
    """

    dimension: int
    extent: int
    stretches: Sequence[tuple[int, int]]


PLACEMENTS = {
    "whole": _native.TRIREME_PLACEMENT_WHOLE,
    "shared": _native.TRIREME_PLACEMENT_SHARED,
    "tied": _native.TRIREME_PLACEMENT_TIED,
}


def _placement_on(axis: str, kind: Name | Split) -> Any:
    native = _native.trireme_parameter_placement(
        struct_size=ctypes.sizeof(_native.trireme_parameter_placement), axis=encoded(axis)
    )
    if not isinstance(kind, Split):
        native.kind = number_of(kind, PLACEMENTS, "placement")
        return native
    native.kind = _native.TRIREME_PLACEMENT_SPLIT
    native.dimension = in_range(kind.dimension, 32, "dimension")
    native.extent = in_range(kind.extent, 64, "extent")
    numbers = [in_range(number, 64, "stretches") for pair in kind.stretches for number in pair]
    if any(len(pair) != 2 for pair in kind.stretches):
        raise ValueError("stretches are pairs of a first index and a count")
    if numbers:
        native.stretches = (c_uint64 * len(numbers))(*numbers)
    native.stretch_count = len(numbers) // 2
    return native


_gradient_data = library.trireme_model_get_gradient_data
_gradient_ready = library.trireme_model_gradient_ready
_NO_LEAF = (1 << 32) - 1
_NARROW = (_native.TRIREME_DTYPE_F16, _native.TRIREME_DTYPE_BF16)


def parse_strategy(name: Name) -> int:
    """The number of a strategy; knows the usual synonyms such as "fsdp" and "ddp"."""
    if not isinstance(name, str):
        return in_range(int(name), 31, "strategy")
    number = c_int32()
    check(library.trireme_strategy_parse(encoded(name), byref(number)))
    return number.value


class _Updater(Protocol):
    """An optimizer, as its model knows it."""

    def _take_error(self) -> BaseException | None: ...

    def _take_schedule_error(self) -> BaseException | None: ...


def _no_updater() -> _Updater | None:
    return None


def _flags(no_sync: bool, absent: bool) -> int:
    """Of a backward pass."""
    return (_native.TRIREME_BACKWARD_FLAG_NO_SYNC if no_sync else 0) | (
        _native.TRIREME_BACKWARD_FLAG_ABSENT if absent else 0
    )


def _destroy(handle: int, stream: CallerStream) -> None:
    library.trireme_model_destroy(handle)
    del stream  # until here it exists, as the end of the memory may wait for it


class Model:
    """A model that is described, sealed, and then trained in steps by all ranks alike.

    >>> import array
    >>> from trireme import Communicator, Model, Optimizer
    >>> group = Communicator(0, 1, "local://model-doctest")
    >>> model = Model(group, "zero3")
    >>> model.add_parameter("weight", [2])
    0
    >>> model.seal()
    >>> optimizer = Optimizer(model, "sgd", learning_rate=0.5)
    >>> model.accumulate_flat(array.array("f", [1, 2]))
    >>> optimizer.step()
    >>> model.get_parameters().tolist()
    [-0.5, -1.0]
    """

    def __init__(
        self,
        communicator: Communicator | Mesh | Parallel,
        strategy: Name,
        *,
        experts: bool = False,
        leaves: int = 0,
        gradients: Name = "average",
        unused: Name = "error",
        uneven: bool = False,
        buckets: Buckets | None = None,
        units: Units | None = None,
        shards: Shards | int | None = None,
        offload: Offload | str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        memory_limit_bytes: int = 0,
        planned_rule: Name | None = None,
        reduce_dtype: Dtype | None = None,
        fixed_order: bool = False,
        whole_rows: bool = False,
        keep_gathered: bool = False,
        update_in_backward: bool = False,
    ) -> None:
        """The ranks of `communicator` train the model. On a Mesh the axes tell how it lies. Along
        "data" lie copies. The ranks along "shard" keep one copy between them. Along "tensor" and
        "pipeline" each rank has a model of its own. `shards` and the ranks of an optimizer's norm
        follow from the axes. On a Parallel, `experts` says that ranks along "expert" hold other
        parameters; its gradients are sums.

        On a communicator of a device the model lies there. Gradients and parameters are memory of
        the device: what has __dlpack__ or __cuda_array_interface__. Calls follow the work in the
        stream of set_stream(), which is the device's default stream until then.

        `leaves` above 0 makes training reproducible: the same bits for any number of ranks.

        `unused` is what becomes of a parameter whose gradient is not handed in: "error", "zero" or
        "skip". `uneven` lets ranks be absent, and end by Optimizer.join().

        `buckets` tells when gradients are reduced. The library calls its `hook` with each Bucket,
        before and after its reduction. The hook must not use the model. If it raises, the step
        fails on all ranks, and Optimizer.step() of its rank raises the same exception.

        `units` tells how parameters are gathered for use. `shards` tells which ranks keep a copy of
        them between them; a number is its `ranks`. `offload` ("zero3", "hybrid_shard") puts this
        rank's part of the parameters into a file without a name, in the directory that it names. A
        directory alone will do. The parameters come to memory unit by unit. The bits are the same.

        If a rank would hold more than `memory_limit_bytes`, seal() fails on all ranks, and the
        message tells which settings would fit. The creation of an optimizer counts its state and
        fails likewise. With `planned_rule`, such as "adamw", seal() counts the state of that rule
        with its defaults. With `reduce_dtype` "f16" or "bf16" each rank rounds its contribution to
        that type and sends 2 bytes an element; sums stay f32.

        After the first step buckets are reduced in the order in which gradients came; not with
        `fixed_order`. With `whole_rows` shards are cut between rows. With `keep_gathered` units of
        "zero3" and "hybrid_shard" stay whole after their release until parameters change.

        With `update_in_backward` each bucket is updated as soon as it is reduced and no gradients
        are kept: a parameter may change from the moment its gradient is handed in until the step
        ends, and the optimizer is there before.
        """
        on_axes = isinstance(communicator, Parallel)
        if experts and not on_axes:
            raise InvalidArgumentError(
                "experts lie on a Parallel alone", _native.TRIREME_ERROR_INVALID_ARGUMENT
            )
        if not on_axes and not isinstance(communicator, Mesh):
            instance(Communicator, communicator, "communicator")
        chosen = options_of(Buckets, buckets, "buckets")
        options = _native.trireme_model_options(
            struct_size=ctypes.sizeof(_native.trireme_model_options),
            strategy=parse_strategy(strategy),
            gradients=number_of(gradients, GRADIENTS, "gradients"),
            leaves=whole(leaves, 32, "leaves"),
            unused=number_of(unused, UNUSED, "unused"),
            flags=bits_of(
                (_native.TRIREME_MODEL_FLAG_UNEVEN, uneven, "uneven"),
                (_native.TRIREME_MODEL_FLAG_FIXED_ORDER, fixed_order, "fixed_order"),
                (_native.TRIREME_MODEL_FLAG_WHOLE_ROWS, whole_rows, "whole_rows"),
                (_native.TRIREME_MODEL_FLAG_KEEP_GATHERED, keep_gathered, "keep_gathered"),
                (
                    _native.TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD,
                    update_in_backward,
                    "update_in_backward",
                ),
            ),
            reduce_dtype=0 if reduce_dtype is None else dtype_number(reduce_dtype, "reduce_dtype"),
            planned_rule=0
            if planned_rule is None
            else number_of(planned_rule, RULES, "planned_rule"),
            memory_limit_bytes=whole(memory_limit_bytes, 64, "memory_limit_bytes"),
            timeout_ns=nanoseconds(timeout),
            units=pointer_to(options_of(Units, units, "units")),
            shards=pointer_to(options_of(Shards, shards, "shards")),
            offload=pointer_to(options_of(Offload, offload, "offload")),
        )
        self._hook: _hook.BucketHook | None = None
        if chosen is not None:
            raw = chosen._raw()
            if chosen.hook is not None:
                self._hook = _hook.BucketHook(chosen.hook)
                raw.hook = _hook.callback
                raw.user_data = self._hook.number
            options.buckets = ctypes.pointer(raw)
        handle = c_void_p()
        if on_axes:
            contents = (
                _native.TRIREME_PARALLEL_CONTENTS_EXPERTS
                if experts
                else _native.TRIREME_PARALLEL_CONTENTS_COMMON
            )
            check(
                library.trireme_parallel_create_model(
                    communicator._handle, contents, byref(options), byref(handle)
                )
            )
        elif isinstance(communicator, Mesh):
            check(
                library.trireme_mesh_create_model(
                    communicator._handle, byref(options), byref(handle)
                )
            )
        else:
            check(library.trireme_model_create(communicator._handle, byref(options), byref(handle)))
        self._token = handle.value
        # Views of the parameters hold it too, so that closing leaves none of them dangling.
        self._stream = CallerStream()
        self._owner: Owner | None = Owner(_destroy, self._token, self._stream)
        if self._hook is not None:
            self._hook.owner = weakref.ref(self._owner)
        self._ranks = communicator  # collected, it would leave the group
        self._device = communicator._device if isinstance(communicator, Communicator) else None
        # Its optimizer, which sets this; weak, as the optimizer holds the model. Calls that may call
        # its functions hold it until they return.
        self._updater: Callable[[], _Updater | None] = _no_updater
        self._parameters: dict[str, int] = {}
        self._units: dict[str, int] = {}
        self._described: list[tuple[int, tuple[int, ...]]] = []  # dtype and shape
        self._unit_of: list[str] = []  # by number of the parameter
        self._untied: list[str] = []
        self._shares = False

    def close(self) -> None:
        """Gives the model back; its memory goes once no optimizer and no view needs it."""
        self._owner = None

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._owner is None

    @property
    def _handle(self) -> int | None:
        if self._owner is None:
            raise InvalidHandleError("the model is closed", _native.TRIREME_ERROR_INVALID_HANDLE)
        return self._token

    @property
    def communicator(self) -> Communicator | None:
        """The ranks that train it; None on a mesh or a Parallel."""
        return self._ranks if isinstance(self._ranks, Communicator) else None

    @property
    def mesh(self) -> Mesh | None:
        """The mesh that it lies on, or None."""
        return self._ranks if isinstance(self._ranks, Mesh) else None

    @property
    def parallel(self) -> Parallel | None:
        """The Parallel that it lies on, or None."""
        return self._ranks if isinstance(self._ranks, Parallel) else None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _name_also(self, name: str, number: int) -> None:
        self._parameters.setdefault(name, number)

    # ---- description -----------------------------------------------------------------------

    def add_parameter(
        self,
        name: str,
        shape: int | Sequence[int] = (),
        dtype: Dtype = "f32",
        *,
        unit: str | None = None,
        tied_to: str | None = None,
        frozen: bool = False,
        replicas: int = 0,
        parameter_group: int = 0,
        placement: Mapping[str, Name | Split] | None = None,
    ) -> int:
        """Adds a parameter of "f32", "f64", "f16" or "bf16" and answers its number.

        Gradients and optimizer state of the 16-bit types are f32. `dtype` may be numpy's or torch's,
        such as numpy.float32.

        Parameters of one `unit` are gathered together and added one after the other. `tied_to`
        names an earlier parameter that this one is an alias of. `replicas` models hold this same
        parameter (1), so that an Optimizer with `norm_ranks` counts it once. `parameter_group` is
        the number of its ParameterGroup in `groups` of the Optimizer, and 0 without `groups`.

        `placement` tells how the parameter lies on axes of the model's Mesh: {"tensor": "whole"} if
        every rank along "tensor" holds it and hands in its whole gradient. With "shared" each rank's
        gradient is a summand, and the library adds them up along the axis. Its replicas follow from
        that. With a Split each rank holds a part. {"pipeline": "tied"} is for a parameter that layers
        of several ranks use: each of these ranks adds it by the same name. On the other axes each
        rank holds a parameter of its own.
        """
        placed = placement or {}
        placements = (_native.trireme_parameter_placement * len(placed))(
            *(_placement_on(axis, kind) for axis, kind in placed.items())
        )
        shape = (shape,) if isinstance(shape, int) else shape
        extents = tuple(in_range(extent, 64, "extent") for extent in shape)
        options = _native.trireme_parameter_options(
            struct_size=ctypes.sizeof(_native.trireme_parameter_options),
            flags=_native.TRIREME_PARAMETER_FLAG_FROZEN if frozen else 0,
            dtype=dtype_number(dtype),
            dimensions=len(extents),
            shape=(c_uint64 * len(extents))(*extents) if extents else None,
            name=encoded(name),
            unit=encoded(unit),
            tied_to=encoded(tied_to),
            replicas=in_range(replicas, 32, "replicas"),
            parameter_group=in_range(parameter_group, 32, "parameter_group"),
            placements=placements if placed else None,
            placement_count=len(placed),
        )
        number = c_uint64()
        check(library.trireme_model_add_parameter(self._handle, byref(options), byref(number)))
        self._name_also(name, number.value)
        self._described.append((options.dtype, extents))
        if tied_to is None:
            self._units.setdefault(name if unit is None else unit, len(self._units))
            self._unit_of.append(name if unit is None else unit)
            self._untied.append(name)
        else:
            self._unit_of.append(self._unit_of[self._parameters[tied_to]])
        return number.value

    def seal(self) -> None:
        """Ends the description. Collective: checks that all ranks registered the same."""
        check(library.trireme_model_seal(self._handle))
        self._shares = self.info().shared_bytes > 0

    def _parameter(self, which: Which) -> int:
        return self._number(which, self._parameters, "parameter", "")

    def _unit(self, which: Which) -> int:
        number = self._parameters.get(which) if isinstance(which, str) else None
        hint = "" if number is None else f"; this parameter is in unit {self._unit_of[number]!r}"
        return self._number(which, self._units, "unit", hint)

    @staticmethod
    def _number(which: Which, names: dict[str, int], what: str, hint: str) -> int:
        if isinstance(which, str):
            if which not in names:
                raise InvalidArgumentError(
                    f"the model has no {what} {which!r}{hint or nearest(which, names)}",
                    _native.TRIREME_ERROR_INVALID_ARGUMENT,
                )
            return names[which]
        return in_range(which, 64, what)

    # ---- what it looks like ----------------------------------------------------------------

    def info(self) -> ModelInfo:
        """The shape of the sealed model."""
        found = _native.trireme_model_info(struct_size=ctypes.sizeof(_native.trireme_model_info))
        check(library.trireme_model_get_info(self._handle, byref(found)))
        strategy: bytes = library.trireme_strategy_name(found.strategy)
        return ModelInfo(
            strategy.decode(), *(getattr(found, field) for field in ModelInfo._fields[1:])
        )

    def unit_info(self, unit: Which) -> UnitInfo:
        """The place of a unit on this rank."""
        found = _native.trireme_unit_info(struct_size=ctypes.sizeof(_native.trireme_unit_info))
        check(library.trireme_model_get_unit_info(self._handle, self._unit(unit), byref(found)))
        return UnitInfo(
            dtype_name(found.dtype), *(getattr(found, field) for field in UnitInfo._fields[1:])
        )

    def memory(self) -> ModelMemory:
        """How many bytes this rank holds, by kind, planned and allocated."""
        found = _native.trireme_model_memory(
            struct_size=ctypes.sizeof(_native.trireme_model_memory)
        )
        check(library.trireme_model_get_memory(self._handle, byref(found)))
        return ModelMemory(*(getattr(found, field) for field in ModelMemory._fields))

    @property
    def offload_info(self) -> OffloadInfo:
        """How the parameters lie, and what the disk has done; needs `offload`."""
        handle = self._handle
        return _offload_info(lambda found: library.trireme_model_get_offload_info(handle, found))

    def statistics(self) -> ModelStatistics:
        """Counts of the model's calls on this rank since it was sealed."""
        found = _native.trireme_model_statistics(
            struct_size=ctypes.sizeof(_native.trireme_model_statistics)
        )
        check(library.trireme_model_get_statistics(self._handle, byref(found)))
        return ModelStatistics(*(getattr(found, field) for field in ModelStatistics._fields))

    def leaf(self, micro_batch: int) -> int | None:
        """The leaf that this rank computes as its micro-batch; None if it has none there."""
        number = c_uint32()
        check(
            library.trireme_model_get_leaf(
                self._handle, in_range(micro_batch, 32, "micro_batch"), byref(number)
            )
        )
        return None if number.value == _NO_LEAF else number.value

    # ---- parameters ------------------------------------------------------------------------

    def _flat(self) -> tuple[int, int]:
        """Elements and dtype of the flat vectors."""
        info = self.info()
        # Any type fits a model without parameters.
        return info.elements, DTYPES[self.unit_info(0).dtype if info.units else "f32"]

    def _check_flat(self, view: memoryview, code: int, what: str) -> None:
        """A flat vector has one dimension, or the shape of the only parameter."""
        shape: tuple[int, ...] = (view.nbytes // (size_of(code) or 1),)
        if len(self._described) == 1:
            shape = self._described[0][1]
        check_shape(view, code, shape, what, "the flat vector of this model")

    def set_parameters(
        self, values: Any = None, root: int = 0, *, dtype: Dtype | None = None
    ) -> None:
        """Gives every rank the parameters of rank `root`; others may pass None. Collective.

        `dtype` names what Python has no type for: "bf16" in 16-bit integers.
        """
        view = address = None
        if values is None:
            count, code = self._flat()
        else:
            view, address, count, code = given(self, values, dtype, "values", self._order())
            self._check_flat(view, code, "values")
        status = library.trireme_model_broadcast_parameters(
            self._handle, address, count, code, in_range(root, 31, "root")
        )
        if status:
            raise self._with_dtype(status, code, False, keep=view)

    def get_parameters(self, out: Any = None, *, dtype: Dtype | None = None) -> Any:
        """Gives every rank all parameters, whole: in `out`, or in a new array.array. Collective.

        A new array holds f16 and bf16 as 16-bit integers; `dtype` names what `out` holds so. Of a
        model on a device it is a DeviceArray.
        """
        if out is None:
            count, code = self._flat()
            if dtype is not None and dtype_number(dtype) != code:
                raise TypeError(f"the model is {self.unit_info(0).dtype}, not {dtype}")
            if self._device is None:
                out = array.array(LETTERS[code], bytes(count * size_of(code)))
            else:
                out = Buffer(self._of_device(), count * size_of(code)).array(code)
            dtype = code
        view, address, count, code = taken(self, out, dtype, "out", self._order())
        self._check_flat(view, code, "out")
        status = library.trireme_model_gather_parameters(self._handle, address, count, code)
        if status:
            raise self._with_dtype(status, code, False, keep=view)
        return out

    def broadcast_parameters(self, values: Mapping[str, Any] | None = None, root: int = 0) -> None:
        """Gives every rank the parameters of rank `root` by name; others may pass None. Collective.

        Each value has the type and shape of its parameter, or one dimension; those of a model may have
        different types. f16 and bf16 may come as their bits, in 16-bit integers. All parameters must be
        there, but for those that are tied to another.
        """
        _named_parameters.broadcast(self, self._places(), values, root)

    def gather_parameters(self) -> dict[str, Any]:
        """Gives every rank all parameters by name, each in its type and shape. Collective.

        They lie in memory of their own; numpy.asarray() makes no copy. f16 and bf16 show as 16-bit
        integers. Parameters that are tied to another are left out. Of a model on a device they are
        DeviceArrays, with to_host().
        """
        return _named_parameters.gather(self, self._places())

    def _places(self) -> dict[str, _named_parameters.Place]:
        return _named_parameters.places_of(
            {name: self._described[self._parameters[name]] for name in self._untied}
        )

    def _of_device(self) -> Communicator:
        """The communicator of a model on a device."""
        assert isinstance(self._ranks, Communicator)
        return self._ranks

    def _order(self) -> CallOptions:
        """Arrays of a device are good in the stream that calls of the model follow."""
        return {"stream": self._stream.number}

    def _with_dtype(
        self, status: int, given: int, gradient: bool, number: int = 0, keep: Any = None
    ) -> TriremeError:
        """Why a call failed; of elements of another dtype it also tells how to get the right one."""
        failure = failed(status, keep)
        if status == _native.TRIREME_ERROR_INVALID_ARGUMENT and number < len(self._described):
            own = self._described[number][0]
            wanted = _native.TRIREME_DTYPE_F32 if gradient and own in _NARROW else own
            if given != own:
                failure.advise(wrong_dtype(given, wanted))
        return failure

    def set_stream(self, stream: Any = None) -> None:
        """Names the stream behind whose work each later call on a device begins.

        A cudaStream_t as a number, or a stream of torch, cupy, numba or cuda.core; None is the
        default stream. The model keeps the object. The stream of a number must exist until another
        one is named, or the model's memory is gone: no model, optimizer, trainer or array of it is
        left. A model on the host has none: InvalidStateError.
        """
        queue = _native.trireme_stream(kind=_native.TRIREME_DEVICE_CUDA)
        queue.native = 0 if stream is None else stream_number(stream)
        check(library.trireme_model_set_stream(self._handle, byref(queue)))
        self._stream.number, self._stream.owner = queue.native or 0, stream

    def check_replicas(self) -> None:
        """Compares the copies that several ranks hold, bit by bit. Collective.

        A MismatchError on all ranks names the first parameter that differs, and the ranks;
        set_parameters() makes the copies the same again.
        """
        check(library.trireme_model_check_replicas(self._handle))

    def gather_unit(self, unit: Which) -> None:
        """Makes a unit's parameters whole on this rank.

        Collective for zero3 and hybrid_shard, unless the ranks share the parameters.
        """
        check(library.trireme_model_gather_unit(self._handle, self._unit(unit)))

    def release_unit(self, unit: Which) -> None:
        """Lets go of a unit's whole parameters; views of them are then no good for zero3."""
        check(library.trireme_model_release_unit(self._handle, self._unit(unit)))

    @contextlib.contextmanager
    def gathered(self, unit: Which) -> Iterator[Model]:
        """A `with` block in which the unit's parameters are whole."""
        self.gather_unit(unit)
        try:
            yield self
        finally:
            self.release_unit(unit)

    def parameter(self, which: Which) -> Any:
        """A parameter's elements in its shape, inside the library's own memory: a memoryview, or a
        DeviceArray of a model on a device. It keeps the memory of the model.

        Good until the unit is released (zero3). Copy what must live longer. Read-only where ranks
        share the parameters. f16 and bf16 show as 16-bit integers.
        """
        number = self._parameter(which)
        address = c_void_p()
        count = c_uint64()
        status = library.trireme_model_get_parameter_data(
            self._handle, number, byref(address), byref(count)
        )
        if status:
            failure = last_failure(status)
            if status == _native.TRIREME_ERROR_INVALID_STATE and number < len(self._unit_of):
                failure.advise(f"; use `with model.gathered({self._unit_of[number]!r}):`")
            raise failure
        code, shape = self._described[number]
        if self._device is not None:
            place = (_dlpack.CUDA, self._device)
            ranks, behind = self._ranks, self._stream
            return DeviceArray(self._owner, address.value, shape, code, place, ranks, behind)
        view = view_of(address.value, count.value, size_of(code), LETTERS[code], self._owner, shape)
        return view.toreadonly() if self._shares else view

    # ---- gradients -------------------------------------------------------------------------

    def begin_backward(self, *, no_sync: bool = False, absent: bool = False) -> None:
        """Begins the backward pass of one micro-batch.

        `no_sync` keeps the gradients on this rank, for the next pass to add to. `absent`: this rank
        of an uneven model has no data for it and hands in nothing.

        With `update_in_backward` this asks the schedule. If the caller's own function raises, this
        raises the same exception, and the pass has not begun.
        """
        updater = self._updater()
        status = library.trireme_model_begin_backward(self._handle, _flags(no_sync, absent))
        if status:
            raise _caused_by_schedule(last_failure(status), updater)

    def gradient(self, which: Which) -> tuple[memoryview[float], bool] | None:
        """Where the gradient of one parameter is exchanged, in its shape, and whether it adds up.

        Write it there and hand in the same view, and nothing is copied. False: overwrite what lies
        there, it is undefined. True: add to it. None: there is no such place, use memory of your
        own. Ask in each backward pass; the place is yours until the gradient is handed in.
        """
        number = self._parameter(which)
        address = c_void_p()
        count = c_uint64()
        code = c_int32()
        adds = c_int32()
        check(
            _gradient_data(
                self._handle, number, byref(address), byref(count), byref(code), byref(adds)
            )
        )
        if not address.value:
            return None
        size, letter = size_of(code.value), LETTERS[code.value]
        shape = self._described[number][1]
        view = view_of(address.value, count.value, size, letter, self._owner, shape)
        return view, adds.value != 0

    def gradient_ready(self, which: Which, gradient: Any, *, dtype: Dtype | None = None) -> None:
        """Hands in the gradient of one parameter; it is copied, unless it is its own view.

        It has the parameter's shape or one dimension, and the parameter's type, or is f32 where that
        has 16 bits. `dtype` as set_parameters().
        """
        view, address, count, code = given(self, gradient, dtype, "the gradient", self._order())
        number = self._parameter(which)
        if view.ndim > 1 and number < len(self._described):
            check_shape(view, code, self._described[number][1], "the gradient", repr(which))
        updater = self._updater()
        status = _gradient_ready(self._handle, number, address, count, code)
        if status:
            raise self._with_dtype(status, code, True, number, view)
        del updater

    def end_backward(self) -> None:
        """Ends the backward pass of one micro-batch; reductions that were started go on."""
        updater = self._updater()
        check(library.trireme_model_end_backward(self._handle))
        del updater

    @contextlib.contextmanager
    def backward(self, *, no_sync: bool = False, absent: bool = False) -> Iterator[Model]:
        """A `with` block around the backward pass of one micro-batch.

        An exception inside leaves the pass open, as gradients are missing.
        """
        self.begin_backward(no_sync=no_sync, absent=absent)
        yield self
        self.end_backward()

    def accumulate_flat(
        self,
        gradients: Any = None,
        *,
        no_sync: bool = False,
        absent: bool = False,
        dtype: Dtype | None = None,
    ) -> None:
        """Hands in the gradients of all parameters as one vector: a whole backward pass.

        Types as gradient_ready(), exceptions of a schedule as begin_backward(). An `absent` pass
        takes None.
        """
        if gradients is None and absent:
            self.begin_backward(no_sync=no_sync, absent=True)
            self.end_backward()
            return
        view, address, count, code = given(self, gradients, dtype, "gradients", self._order())
        self._check_flat(view, code, "gradients")
        flags = _flags(no_sync, absent)
        updater = self._updater()
        status = library.trireme_model_accumulate_flat(self._handle, address, count, code, flags)
        if status:
            raise _caused_by_schedule(self._with_dtype(status, code, True, keep=view), updater)

    def discard_gradients(self) -> None:
        """Forgets the gradients of this step, so that it begins anew. Collective.

        Exceptions of the caller's own functions in this step are forgotten, too. If the step cannot
        be discarded, the first of them is the cause of this call's exception.
        """
        updater = self._updater()
        status = library.trireme_model_discard_gradients(self._handle)
        failure = last_failure(status) if status else None
        if updater is not None:
            error = updater._take_error()
        else:
            error = None if self._hook is None else self._hook.take_error()
        if failure is not None:
            raise caused(failure, error)

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<trireme.Model of {len(self._parameters)} parameters{state}>"


def _caused_by_schedule(failure: TriremeError, updater: _Updater | None) -> BaseException:
    """The exception of a failed call that may have asked the schedule of the optimizer."""
    return caused(failure, None if updater is None else updater._take_schedule_error())


# Hooks, rules and schedules run inside the library, inside these.
for _calls in (
    Model.begin_backward,
    Model.gradient,
    Model.gradient_ready,
    Model.end_backward,
    Model.accumulate_flat,
    Model.discard_gradients,
):
    _request.called_back.add(_calls.__code__)
