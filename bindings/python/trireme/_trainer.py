"""Whole training steps over layers of the caller."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import math
import os
import weakref
from ctypes import byref, c_double, c_void_p
from typing import Any, Callable, Sequence, Union

from . import _native, _request
from ._abi.options import Offload
from ._buffer import Owner, view_of
from ._communicator import Communicator
from ._errors import (
    InvalidArgumentError,
    InvalidHandleError,
    UnsupportedError,
    caused,
    check,
    last_failure,
)
from ._fields import bits_of, function, instance, instances, options_of, pointer_to, whole
from ._model import Which
from ._native import library
from ._offload import OffloadInfo, _offload_info
from ._optimizer import Optimizer
from ._pipeline import PipelineSchedule
from ._trainer_reports import MeasuredCosts, TrainerInfo, TrainerMetrics
from ._values import (
    LETTERS,
    Dtype,
    check_shape,
    dtype_name,
    dtype_number,
    encoded,
    in_range,
    readable,
    size_of,
    wrong_dtype,
)

_F32 = _native.TRIREME_DTYPE_F32
_NARROW = (_native.TRIREME_DTYPE_F16, _native.TRIREME_DTYPE_BF16)
# Types in which gradients of outputs add up.
_ADDED = (_F32, _native.TRIREME_DTYPE_F64, *_NARROW)
_PHASES = {
    _native.TRIREME_PHASE_FORWARD: "forward",
    _native.TRIREME_PHASE_RECOMPUTE: "recompute",
    _native.TRIREME_PHASE_BACKWARD: "backward",
    _native.TRIREME_PHASE_EVALUATE: "evaluate",
    _native.TRIREME_PHASE_BACKWARD_INPUT: "backward_input",
    _native.TRIREME_PHASE_BACKWARD_WEIGHT: "backward_weight",
}


class LayerCall:
    """One call of a layer. Its memoryviews are good until the layer returns.

    numpy.asarray() of one makes no copy. A memoryview without data is empty.
    """

    def __init__(self, trainer: _Runner, raw: Any) -> None:
        self._raw = raw
        self._runner = trainer
        self._layer = trainer.layers[raw.layer]

    @property
    def phase(self) -> str:
        """Why the layer is called: "forward", "recompute", "backward" or "evaluate".

        A layer with `backward_weight` has "backward_input" and "backward_weight" for "backward".
        """
        return _PHASES[self._raw.phase]

    @property
    def layer(self) -> int:
        """Number of the layer in this rank's list, from 0."""
        return int(self._raw.layer)

    @property
    def number(self) -> int:
        """Number of the layer in the whole model; with a pipeline, by its cuts."""
        return int(self._raw.number)

    @property
    def stage(self) -> int:
        """Number of the layer's stage in a pipeline, from 0. Else 0."""
        return int(self._raw.stage)

    @property
    def step(self) -> int:
        """Optimizer.step_count before the step."""
        return int(self._raw.step)

    @property
    def micro_batch(self) -> int:
        """Number of the micro-batch on this rank, from 0."""
        return int(self._raw.micro_batch)

    @property
    def leaf(self) -> int:
        """Number of the micro-batch over all ranks, from 0; in a reproducible model, the leaf."""
        return int(self._raw.leaf)

    @property
    def random_seed(self) -> int:
        """Seed for this layer, micro-batch and step; the same in forward and backward."""
        return int(self._raw.random_seed)

    @property
    def batch(self) -> Any:
        """As handed to Trainer.step() or Trainer.evaluate()."""
        return self._runner.batch

    @property
    def loss_scale(self) -> float:
        """Backward: the last layer multiplies the gradient of its loss by this factor."""
        return float(self._raw.loss_scale)

    @property
    def loss(self) -> float:
        """Forward and evaluate of the last layer: the loss of this micro-batch, to be set."""
        return float(self._raw.loss[0]) if self._raw.loss else math.nan

    @loss.setter
    def loss(self, loss: float) -> None:
        if not self._raw.loss:
            raise InvalidArgumentError(
                "only forward of the last layer has a loss", _native.TRIREME_ERROR_INVALID_ARGUMENT
            )
        self._raw.loss[0] = loss

    @property
    def input_used(self) -> int:
        """Bytes of the input that the layer before has used."""
        return int(self._raw.input_used)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Eight numbers that the layer before has set. Empty for the first layer."""
        shape = self._raw.input_shape
        return tuple(shape[: _native.TRIREME_LAYER_DIMENSIONS]) if shape else ()

    @property
    def output_used(self) -> int:
        """Bytes of the output that this micro-batch uses: all, unless forward sets less."""
        return int(self._raw.output_used[0])

    @output_used.setter
    def output_used(self, used: int) -> None:
        self._require_forward()
        self._raw.output_used[0] = in_range(used, 64, "output_used")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Eight numbers for the next layer, such as the extents of the output. Forward sets them.

        A shorter shape leaves the others 0.
        """
        return tuple(self._raw.output_shape[: _native.TRIREME_LAYER_DIMENSIONS])

    @output_shape.setter
    def output_shape(self, shape: Sequence[int]) -> None:
        self._require_forward()
        numbers = [in_range(number, 64, "output_shape") for number in shape]
        most = _native.TRIREME_LAYER_DIMENSIONS
        if len(numbers) > most:
            raise InvalidArgumentError(
                f"output_shape has {len(numbers)} numbers, above {most}",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        for i, number in enumerate(numbers + [0] * (most - len(numbers))):
            self._raw.output_shape[i] = number

    def _require_forward(self) -> None:
        if self.phase.startswith("backward"):
            raise InvalidArgumentError(
                "only forward says what it uses", _native.TRIREME_ERROR_INVALID_ARGUMENT
            )

    @property
    def input(self) -> memoryview[Any]:
        """The output of the layer before; read-only. Empty for the first, which reads the batch.

        Where a stage begins it has the shape Layer.input, or is flat without one. It is flat and
        shorter where the layer before has used a part of it.
        """
        return self._of_input(self._raw.input).toreadonly()

    @property
    def reads(self) -> tuple[memoryview[Any], ...]:
        """The outputs of Layer.reads, flat, as far as they are used; read-only.

        Their elements have the type of this layer.
        """
        return tuple(
            self._read(self._raw.read_inputs[i], i).toreadonly()
            for i in range(self._raw.read_count)
        )

    @property
    def read_bytes(self) -> tuple[int, ...]:
        """For each of `reads`: the output_bytes of that layer, which may use a part of them."""
        return tuple(self._raw.read_bytes[: self._raw.read_count])

    @property
    def read_shapes(self) -> tuple[tuple[int, ...], ...]:
        """For each of `reads`: eight numbers, as input_shape."""
        return tuple(
            tuple(self._raw.read_shapes[i][: _native.TRIREME_LAYER_DIMENSIONS])
            for i in range(self._raw.read_count)
        )

    @property
    def read_gradients(self) -> tuple[memoryview[Any], ...]:
        """Backward: the gradient of each of `reads`, to be written whole. Else empty."""
        if not self._raw.read_gradients:
            return ()
        return tuple(
            self._read(self._raw.read_gradients[i], i) for i in range(self._raw.read_count)
        )

    def _read(self, address: int | None, place: int) -> memoryview[Any]:
        if not address:
            return memoryview(bytearray())
        return self._flat(address, self._layer.code, self._raw.read_used[place])

    @property
    def output(self) -> memoryview[Any]:
        """Written by forward; in backward what forward wrote."""
        return self._of_output(self._raw.output)

    @property
    def output_gradient(self) -> memoryview[Any]:
        """Backward: gradient of `output`, by the next layer; read-only. Empty for the last one."""
        address, used = self._raw.output_gradient, self.output_used
        if address and used < self._raw.output_bytes:
            return self._flat(address, self._layer.code, used).toreadonly()
        return self._of_output(address).toreadonly()

    @property
    def input_gradient(self) -> memoryview[Any]:
        """Backward: the gradient of `input`, to be written. Empty for the first layer."""
        return self._of_input(self._raw.input_gradient)

    @property
    def saved(self) -> memoryview[Any]:
        """Data that forward leaves for backward, as bytes; cast() makes other elements of them."""
        return view_of(self._raw.saved, self._raw.saved_bytes, 1, "B", self._runner.owner())

    @property
    def parameters(self) -> tuple[memoryview[Any], ...]:
        """The layer's parameters, whole, in their shapes; read-only."""
        return tuple(
            self._view(address, code, shape).toreadonly()
            for address, (code, shape) in zip(self._addresses(), self._layer.described)
        )

    @property
    def gradients(self) -> tuple[memoryview[Any] | None, ...]:
        """Backward: the gradient of each parameter, to be written whole; None of a frozen one.

        As the parameter, or f32 where that is f16 or bf16.
        """
        if not self._raw.gradients:
            return ()
        return tuple(
            None
            if not self._raw.gradients[i]
            else self._view(self._raw.gradients[i], _F32 if code in _NARROW else code, shape)
            for i, (code, shape) in enumerate(self._layer.described)
        )

    def set_gradient(self, index: int, gradient: Any) -> None:
        """Backward: memory of one's own is the gradient of the layer's `index`-th parameter.

        None: it has no gradient, and `unused` of the model decides.
        """
        if not self._raw.gradients or not 0 <= index < len(self._layer.described):
            raise InvalidArgumentError(
                f"no gradient {index} is wanted here", _native.TRIREME_ERROR_INVALID_ARGUMENT
            )
        if gradient is None:
            self._raw.gradients[index] = None
            return
        code, shape = self._layer.described[index]
        code = _F32 if code in _NARROW else code
        view, address, count, given = readable(gradient, None, "gradient")
        if given != code or count != math.prod(shape):
            raise InvalidArgumentError(
                f"the gradient has {count} elements of {dtype_name(given)}, not "
                f"{math.prod(shape)} of {dtype_name(code)}{wrong_dtype(given, code)}",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        check_shape(view, code, shape, "the gradient", f"parameter {index} of the layer")
        self._runner.kept.append(view)  # read when the layer has returned
        self._raw.gradients[index] = address

    def _addresses(self) -> list[int | None]:
        return [self._raw.parameters[i] for i in range(self._raw.parameter_count)]

    def _view(self, address: int | None, code: int, shape: tuple[int, ...]) -> memoryview[Any]:
        count = math.prod(shape)
        size, letter = size_of(code), LETTERS[code]
        owner = self._runner.owner()
        if not shape or not count:
            return view_of(address, count, size, letter, owner)
        return view_of(address, count, size, letter, owner, shape)

    def _flat(self, address: int, code: int, used: int) -> memoryview[Any]:
        return self._view(address, code, (used // size_of(code),))

    def _of_output(self, address: int | None) -> memoryview[Any]:
        if not address:
            return memoryview(bytearray())
        return self._view(address, self._layer.code, self._layer.extents)

    def _of_input(self, address: int | None) -> memoryview[Any]:
        if not address:
            return memoryview(bytearray())
        own = self._layer
        used = self._raw.input_used
        if used < self._raw.input_bytes:
            begins = own.begins or own.input is not None
            code = own.code if begins else self._runner.layers[self._raw.layer - 1].code
            return self._flat(address, code, used)
        if own.input is not None:
            return self._view(address, own.code, own.input)
        if own.begins:  # only the rank before knows the shape
            count = self._raw.input_bytes // size_of(own.code)
            return self._view(address, own.code, (count,))
        before = self._runner.layers[self._raw.layer - 1]
        return self._view(address, before.code, before.extents)


Function = Callable[[LayerCall], object]


class Layer:
    """One layer: its two functions, and the parameters and memory that they work on.

    `forward` reads call.input and call.parameters. It writes call.output, or call.loss in the last
    layer, and may leave `saved_bytes` for backward in call.saved. `backward` reads these and
    call.output_gradient, and writes call.input_gradient and call.gradients.

    `parameters` are names or numbers of parameters of the model, one after the other. `output` is
    the shape of the output for one micro-batch, of `dtype`.

    With `backward_weight`, `backward` computes call.input_gradient alone, and `backward_weight`
    computes call.gradients, at once or later. `input` is the shape of the input, of `dtype`. The
    trainer refuses a layer before whose output has other bytes.

    `reads` are numbers, in the whole model, of earlier layers whose outputs this one also reads:
    call.reads. Backward writes call.read_gradients. Gradients add up in `dtype` of the layer that
    is read.
    """

    def __init__(
        self,
        name: str,
        forward: Function,
        backward: Function,
        *,
        parameters: Sequence[Which] = (),
        output: Union[int, Sequence[int]] = 0,
        dtype: Dtype = "f32",
        saved_bytes: int = 0,
        backward_weight: Function | None = None,
        input: Union[int, Sequence[int], None] = None,
        reads: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.forward = function(forward, "Layer.forward")
        self.backward = function(backward, "Layer.backward")
        self.parameters = tuple(parameters)
        self.output = (output,) if isinstance(output, int) else tuple(output)
        self.dtype = dtype
        self.saved_bytes = saved_bytes
        self.backward_weight = (
            None if backward_weight is None else function(backward_weight, "Layer.backward_weight")
        )
        self.input = None if input is None else (input,) if isinstance(input, int) else tuple(input)
        self.reads = tuple(reads)


class TrainerPipeline:
    """The pipeline of a trainer, whose layers are those of this rank's stages alone.

    `communicator` has the ranks of the pipeline, as many as `schedule` has. Stage s has the layers
    from cuts[s] up to, but without, cuts[s + 1], by their numbers in the whole model, as
    partition() gives them. With `require_split`, a schedule with W needs layers with
    `backward_weight`.
    """

    def __init__(
        self,
        communicator: Communicator,
        schedule: PipelineSchedule,
        cuts: Sequence[int],
        *,
        require_split: bool = False,
    ) -> None:
        self.communicator = instance(Communicator, communicator, "communicator")
        self.schedule = instance(PipelineSchedule, schedule, "schedule")
        self.cuts = tuple(cuts)
        self.require_split = require_split

    def _native(self) -> Any:
        cuts = (ctypes.c_uint64 * max(1, len(self.cuts)))(
            *(in_range(cut, 64, "cut") for cut in self.cuts)
        )
        return _native.trireme_trainer_pipeline_options(
            struct_size=ctypes.sizeof(_native.trireme_trainer_pipeline_options),
            flags=bits_of(
                (
                    _native.TRIREME_TRAINER_PIPELINE_FLAG_REQUIRE_SPLIT,
                    self.require_split,
                    "require_split",
                )
            ),
            communicator=self.communicator._handle,
            schedule=self.schedule._handle,
            cuts=cuts,
            cut_count=len(self.cuts),
        )

    def _begins(self) -> set[int]:
        """Places in this rank's list at which a stage begins."""
        begins, place = set(), 0
        for stage, rank in enumerate(self.schedule.placement):
            if rank != self.communicator.rank or stage + 1 >= len(self.cuts):
                continue
            begins.add(place)
            place += max(0, self.cuts[stage + 1] - self.cuts[stage])
        return begins


@dataclasses.dataclass(frozen=True)
class _Described:
    """A layer as a runner needs it."""

    forward: Function
    backward: Function
    backward_weight: Function | None
    code: int
    extents: tuple[int, ...]
    described: tuple[tuple[int, tuple[int, ...]], ...]  # dtype and shape of its parameters
    input: tuple[int, ...] | None
    begins: bool  # a stage, or the list


AfterStep = Callable[[TrainerMetrics], object]


def _refused() -> UnsupportedError:
    text = "trainers of models of a device are made by the functions of C alone"
    return UnsupportedError(text, _native.TRIREME_ERROR_UNSUPPORTED)


class _Runner:
    """The layers of one trainer and what they raised first."""

    def __init__(self, layers: list[_Described], after_step: AfterStep | None) -> None:
        self.layers = layers
        self.after_step = after_step
        self.owner: Callable[[], Owner | None] = lambda: None
        self.batch: Any = None
        self.kept: list[memoryview] = []
        self.error: BaseException | None = None
        self.number = next(_numbers)
        _runners[self.number] = self

    def run(self, raw: Any) -> None:
        if raw.device.kind == _native.TRIREME_DEVICE_CUDA:
            raise _refused()  # the host cannot read its memory
        layer = self.layers[raw.layer]
        self.kept.clear()
        run = {
            _native.TRIREME_PHASE_BACKWARD: layer.backward,
            _native.TRIREME_PHASE_BACKWARD_INPUT: layer.backward,
            _native.TRIREME_PHASE_BACKWARD_WEIGHT: layer.backward_weight,
        }.get(raw.phase, layer.forward)
        assert run is not None
        run(LayerCall(self, raw))

    def take_error(self) -> BaseException | None:
        """The exception that a function raised; this forgets it."""
        error, self.error = self.error, None
        return error


_numbers = itertools.count(1)
# The trainer holds its runner; the library calls it from methods of the trainer only.
_runners: weakref.WeakValueDictionary[int, _Runner] = weakref.WeakValueDictionary()


def _guarded(number: int, work: Callable[[_Runner], object]) -> int:
    runner = _runners.get(number)
    if runner is None:
        return 1
    try:
        return 1 if work(runner) else 0
    except BaseException as error:  # nothing may go through the library; the step raises it
        if runner.error is None:
            runner.error = error
        return 1


def _run(raw: Any, number: int) -> int:
    return _guarded(number, lambda runner: runner.run(raw.contents))


def _after(raw: Any, number: int) -> int:
    def work(runner: _Runner) -> object:
        assert runner.after_step is not None
        return runner.after_step(TrainerMetrics.of(raw.contents))

    return _guarded(number, work)


_layer_callback = _native.trireme_layer_callback(_run)
_after_callback = _native.trireme_trainer_callback(_after)


class Trainer:
    """Whole training steps over layers of the caller, the same for every strategy.

    If a layer raises, step() or evaluate() of its rank raises the same exception, and those of the
    other ranks raise a CallbackError. Nothing has changed then, and the next step may come.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        layers: Sequence[Layer],
        *,
        micro_batches: int = 0,
        checkpoint_every: int = 0,
        activation_budget_bytes: int = 0,
        seed: int = 0,
        after_step: AfterStep | None = None,
        offload: Offload | str | os.PathLike[str] | None = None,
        zero_gradients: bool = False,
        pipeline: TrainerPipeline | None = None,
    ) -> None:
        """Collective: all ranks name the same layers and options, but for `after_step`.

        `micro_batches` of each rank make a step; a reproducible model shares out its leaves
        instead. `checkpoint_every` keeps the output of every so many-th layer and computes the rest
        again in backward; `activation_budget_bytes` does so as little as the bytes allow.
        The trainer calls `after_step` with the TrainerMetrics of each step. A true answer asks all
        ranks to stop. So does an exception, which step() raises when the step is done.

        With `offload`, the activations lie in a file without a name, in the directory that it
        names. A directory alone will do. They stream through a window of memory of at most its
        `buffer_bytes`. The bits are the same.

        Backward writes each gradient whole. If it leaves one unwritten, or adds to it, the step
        fails with a CallbackError that names the gradient. With `zero_gradients` the gradients are
        0 before backward, and the library does not look for unwritten ones.

        With `pipeline`, this rank has the layers of its own stages alone, and the model has their
        parameters. All ranks learn the loss.

        A model on a device is refused: UnsupportedError.
        """
        model = instance(Optimizer, optimizer, "optimizer").model
        if model._device is not None:  # on all its ranks, so none waits for another
            raise _refused()
        layers = instances(Layer, layers, "layers")
        described: list[_Described] = []
        if pipeline is not None:
            instance(TrainerPipeline, pipeline, "pipeline")
        begins = {0} if pipeline is None else pipeline._begins()
        raw = (_native.trireme_layer * max(1, len(layers)))()
        for place, layer in zip(raw, layers):
            numbers = [model._parameter(which) for which in layer.parameters]
            first = numbers[0] if numbers else 0
            if numbers != list(range(first, first + len(numbers))):
                raise InvalidArgumentError(
                    f"layer {layer.name!r}: parameters {numbers} do not come one after the other",
                    _native.TRIREME_ERROR_INVALID_ARGUMENT,
                )
            code = dtype_number(layer.dtype)
            extents = tuple(in_range(extent, 64, "extent") for extent in layer.output)
            known = [model._described[n] for n in numbers if n < len(model._described)]
            described.append(
                _Described(
                    layer.forward,
                    layer.backward,
                    layer.backward_weight,
                    code,
                    extents,
                    tuple(known),
                    layer.input,
                    len(described) in begins,
                )
            )
            place.struct_size = ctypes.sizeof(_native.trireme_layer)
            place.name = encoded(layer.name)
            place.first_parameter = first
            place.parameter_count = len(numbers)
            place.forward = _layer_callback
            place.backward = _layer_callback
            place.output_bytes = in_range(math.prod(extents) * size_of(code), 64, "output")
            place.saved_bytes = in_range(layer.saved_bytes, 64, "saved_bytes")
            place.output_dtype = code if code in _ADDED else 0
            if layer.reads:
                reads = (ctypes.c_uint64 * len(layer.reads))(
                    *(in_range(read, 64, "reads") for read in layer.reads)
                )
                place.reads = reads  # which the struct keeps alive
                place.read_count = len(layer.reads)
            if layer.backward_weight is not None:
                place.backward_weight = _layer_callback
            if layer.input is not None:
                place.input_bytes = in_range(math.prod(layer.input) * size_of(code), 64, "input")
        runner = _Runner(described, after_step)
        for place in raw:
            place.user_data = runner.number
        options = _native.trireme_trainer_options(
            struct_size=ctypes.sizeof(_native.trireme_trainer_options),
            flags=bits_of(
                (_native.TRIREME_TRAINER_FLAG_ZERO_GRADIENTS, zero_gradients, "zero_gradients")
            ),
            micro_batches=whole(micro_batches, 32, "micro_batches"),
            checkpoint_every=whole(checkpoint_every, 64, "checkpoint_every"),
            activation_budget_bytes=whole(activation_budget_bytes, 64, "activation_budget_bytes"),
            seed=whole(seed, 64, "seed"),
            user_data=runner.number,
            offload=pointer_to(options_of(Offload, offload, "offload")),
        )
        staged = None if pipeline is None else pipeline._native()
        if staged is not None:
            options.pipeline = ctypes.pointer(staged)
        if after_step is not None:
            function(after_step, "after_step")
            options.after_step = _after_callback
        handle = c_void_p()
        check(
            library.trireme_trainer_create(
                optimizer._handle, raw, len(layers), byref(options), byref(handle)
            )
        )
        self._token = handle.value
        self._owner: Owner | None = Owner(library.trireme_trainer_destroy, self._token)
        self._optimizer = optimizer
        # Or its close() would take the function away which the library goes on to call.
        self._held: Owner | None = optimizer._owner
        self._runner = runner
        # Layers of the whole model, if there is a pipeline.
        self._all_layers = pipeline.cuts[-1] if pipeline is not None else 1
        runner.owner = weakref.ref(self._owner)

    def close(self) -> None:
        """Gives the memory back once no view of it is left."""
        self._owner = None
        self._held = None

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._owner is None

    @property
    def _handle(self) -> int | None:
        if self._owner is None:
            raise InvalidHandleError("the trainer is closed", _native.TRIREME_ERROR_INVALID_HANDLE)
        return self._token

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self, batch: Any = None) -> TrainerMetrics:
        """Forward and backward of all micro-batches, and the optimizer's step. Collective."""
        metrics = _native.trireme_trainer_metrics(
            struct_size=ctypes.sizeof(_native.trireme_trainer_metrics)
        )
        runner, owners, handle = self._runner, (self._owner, self._held), self._handle
        outer, runner.batch = runner.batch, batch
        try:
            code = library.trireme_trainer_step(handle, None, byref(metrics))
        finally:
            runner.batch = outer
        del owners
        if code:
            raise self._cause(code)
        error = runner.take_error()
        if error is not None:  # of after_step
            raise error
        return TrainerMetrics.of(metrics)

    def evaluate(self, batch: Any = None) -> float:
        """The mean loss of forward alone, over as many micro-batches as a step has. Collective."""
        loss = c_double()
        runner, owners, handle = self._runner, (self._owner, self._held), self._handle
        outer, runner.batch = runner.batch, batch
        try:
            code = library.trireme_trainer_evaluate(handle, None, byref(loss))
        finally:
            runner.batch = outer
        del owners
        if code:
            raise self._cause(code)
        return loss.value

    def _cause(self, code: int) -> BaseException:
        """The exception of a failed step. Exceptions of the caller's functions are forgotten.

        Ranks may have failed for several reasons; the library tells one of them.
        """
        failure = last_failure(code)
        errors = (self._runner.take_error(), self._optimizer._take_error())
        return caused(failure, errors[0] or errors[1])

    def request_stop(self) -> None:
        """Asks all ranks to stop: `stop` of the metrics, after the same step. On any thread."""
        check(library.trireme_trainer_request_stop(self._handle))

    def info(self) -> TrainerInfo:
        """Layers and memory of the trainer on this rank."""
        found = _native.trireme_trainer_info(
            struct_size=ctypes.sizeof(_native.trireme_trainer_info)
        )
        check(library.trireme_trainer_get_info(self._handle, byref(found)))
        return TrainerInfo.of(found)

    def layer_costs(self) -> list[MeasuredCosts]:
        """Costs of each layer of the pipeline, by the steps since the last call. Collective."""
        size = ctypes.sizeof(_native.trireme_measured_costs)
        found = (_native.trireme_measured_costs * self._all_layers)()
        found[0].struct_size = size
        check(
            library.trireme_trainer_get_layer_costs(
                self._handle, found, self._all_layers, byref(ctypes.c_uint64())
            )
        )
        return [MeasuredCosts.of(each) for each in found]

    @property
    def offload_info(self) -> OffloadInfo:
        """How activations lie, and what the disk has done; needs `offload`."""
        handle = self._handle
        return _offload_info(lambda found: library.trireme_trainer_get_offload_info(handle, found))

    def __repr__(self) -> str:
        return f"<trireme.Trainer{', closed' if self.closed else ''}>"


# Layers run inside the library, inside these.
_request.called_back.add(Trainer.step.__code__)
_request.called_back.add(Trainer.evaluate.__code__)
