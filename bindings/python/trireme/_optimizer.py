"""The update rule of a model, run on the part of it that this rank owns."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import os
import weakref
from ctypes import byref, c_double, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Sequence, Union

from . import _native, _request
from ._buffer import Owner, view_of
from ._errors import InvalidArgumentError, InvalidHandleError, caused, check, last_failure
from ._counters import CountedSteps
from ._model import Model
from ._native import library
from ._offload import OffloadedState
from ._schedule import Asked, Schedule
from ._values import (
    LETTERS,
    OPTIMIZERS,
    RATE_ADJUSTMENTS,
    STATES,
    Name,
    dtype_name,
    in_range,
    number_of,
    or_default,
    readable,
    size_of,
)

if TYPE_CHECKING:
    from ._communicator import Communicator

_step = library.trireme_optimizer_step
_join = library.trireme_optimizer_join


@dataclasses.dataclass(frozen=True)
class Update:
    """One piece of the model for a caller's own rule: what this rank owns of one parameter.

    The memoryviews are good until the rule returns; numpy.asarray() of one makes no copy.
    """

    parameter: int  #: Number of the parameter.
    first: int  #: Which of its elements comes first here.
    count: int  #: Elements; 1 or more.
    step: int  #: Number of this step, from 1.
    learning_rate: float  #: Of this step, by the schedule and for the parameter's group.
    dtype: str  #: Type of `parameters`, for example "f32".
    gradient_dtype: str  #: Of the rest: "f32" where `dtype` is "f16" or "bf16", else `dtype`.
    parameters: memoryview[float]  #: To be updated. f16 and bf16 show as 16-bit integers.
    gradients: memoryview[float]  #: Reduced and clipped; read-only.
    states: tuple[memoryview[float], ...]  #: As many as asked for; 0 before the first step.


@dataclasses.dataclass(frozen=True)
class LossScaleInfo:
    """The loss scale, and how the last step went with it."""

    scale: float  #: What the next loss is multiplied by.
    skipped: bool  #: The last step was skipped, as a gradient was inf or NaN.
    at_floor: bool  #: And the scale is at its floor: that step has raised InvalidStateError.
    clean_steps: int  #: Steps since the scale grew or one was skipped.
    overflows: int  #: Skipped steps since the scale grew.
    skipped_steps: int  #: In all.
    #: If it was skipped: the first parameter that overflowed; None: one of another model.
    parameter: int | None
    rank: int | None  #: The first that handed in an inf or NaN for it; None: only the sum is.


@dataclasses.dataclass(frozen=True)
class StateRange:
    """A stretch of the state of training that this rank owns."""

    #: "parameter", "optimizer" for a state vector of the rule, or "rows" and "columns" of adafactor.
    kind: str
    vector: int  #: Which state vector: see optimizer.h, for example 0 and 1 of adamw: m, v.
    parameter: int  #: Number of the parameter.
    name: str  #: Its name.
    dtype: str  #: Type of its elements.
    shape: tuple[int, ...]  #: Its whole shape; of rows or columns their number.
    first: int  #: Which of its elements, in row-major order, comes first.
    count: int  #: Elements; 1 or more.
    #: Them, in the library's own memory. Empty where they lie in a file: see read_range().
    data: memoryview[float]


Rule = Callable[[Update], object]


class _UserRule:
    """A caller's function and what it raised."""

    def __init__(self, function: Rule, state_count: int) -> None:
        self.function = function
        self.state_count = state_count
        self.owner: Callable[[], Owner | None] = lambda: None
        self.error: BaseException | None = None

    def run(self, piece: Any) -> None:
        owner = self.owner()

        def view(address: int, code: int) -> memoryview[float]:
            return view_of(address, piece.count, size_of(code), LETTERS[code], owner)

        states = piece.states[: self.state_count]
        self.function(
            Update(
                piece.parameter,
                piece.first,
                piece.count,
                piece.step,
                piece.learning_rate,
                dtype_name(piece.dtype),
                dtype_name(piece.gradient_dtype),
                view(piece.parameters, piece.dtype),
                view(piece.gradients, piece.gradient_dtype).toreadonly(),
                tuple(view(state, piece.gradient_dtype) for state in states),
            )
        )

    def take_error(self) -> BaseException | None:
        """What the function raised, once."""
        error, self.error = self.error, None
        return error


_rules: dict[int, _UserRule] = {}
_rule_numbers = itertools.count(1)


def _update(piece: Any, number: int) -> int:
    rule = _rules.get(number)
    if rule is None:  # closed meanwhile
        return 1
    try:
        rule.run(piece.contents)
    except BaseException as error:  # nothing may go through the library; step() raises it
        rule.error = error
        return 1
    return 0


_update_callback = _native.trireme_update_callback(_update)


def _destroy(handle: int, number: int) -> None:
    library.trireme_optimizer_destroy(handle)
    _rules.pop(number, None)


class Optimizer(OffloadedState, CountedSteps):
    """The update rule of a sealed model, or a function of one's own.

    The rules are "sgd", "adam", "adamw", "adagrad", "rmsprop", "lion", "lamb", "lars",
    "adafactor" and "muon".

    A function is called in step() with an Update for each piece this rank owns; it changes
    `update.parameters` in place. What it raises comes out of step(), which has then failed on all
    ranks. For the same bits on any number of ranks it treats each element alone.
    """

    def __init__(
        self,
        model: Model,
        rule: Union[Name, Rule],
        *,
        learning_rate: float | None = None,
        momentum: float = 0.0,
        nesterov: bool = False,
        centered: bool = False,
        beta1: float | None = None,
        beta2: float | None = None,
        epsilon: float | None = None,
        weight_decay: float = 0.0,
        max_norm: float = 0.0,
        states: int = 0,
        max_value: float = 0.0,
        check_every: int = 0,
        one_sweep: bool = False,
        norm_ranks: Communicator | None = None,
        group_max_norms: Sequence[float] = (),
        group_rate_factors: Sequence[float] = (),
        group_weight_decays: Sequence[float] = (),
        loss_scale: float = 0.0,
        loss_scale_growth: float = 0.0,
        loss_scale_backoff: float = 0.0,
        loss_scale_floor: float = 0.0,
        loss_scale_window: int = 0,
        loss_scale_hysteresis: int = 0,
        trust_coefficient: float | None = None,
        max_trust: float = 0.0,
        offload_path: str | os.PathLike[str] | None = None,
        offload_ratio: float = 0.0,
        offload_buffer_bytes: int = 0,
        master_weights: bool = False,
        stochastic_rounding: bool = False,
        rounding_seed: int = 0,
        beta2_decay: float | None = None,
        max_update_rms: float | None = None,
        min_parameter_rms: float | None = None,
        elementwise_groups: Sequence[bool] = (),
        orthogonal_steps: int = 0,
        rate_adjustment: Name = "original",
    ) -> None:
        """Collective: all ranks name the same options.

        `momentum` is for "sgd", there also as `nesterov`, "rmsprop" and "lars", `centered` for
        "rmsprop". What that calls alpha is `beta2`. `max_trust` above 0 is the most that "lamb" and
        "lars" multiply the learning rate of a parameter with; `trust_coefficient` is for "lars".
        With "adafactor" the mean of squares moves by t**`beta2_decay` (None: -0.8), the root mean
        square of an update is clipped to `max_update_rms` (None: 1), and that of a parameter counts
        as `min_parameter_rms` at least (None: 0.001).

        "muon" makes updates of matrices, whose `momentum` is 0.95 by default, orthogonal in
        `orthogonal_steps` steps (0: 5), and has "adamw" for all else: parameters of less than two
        dimensions, and those of a `norm_group` that is true in `elementwise_groups`, as embeddings
        and output layers should be. `rate_adjustment` is by what it multiplies the learning rate of
        a matrix: "original" is sqrt(max(1, rows / columns)), "match_adamw" is
        0.2 * sqrt(max(rows, columns)), for the rates and weight decays of "adamw".

        `max_norm` above 0 clips the global norm of the gradients, `max_value` above 0 each of them
        before that. `states` is the number of state vectors that a function of one's own gets.
        After every `check_every` steps Model.check_replicas() is part of the step. With
        `one_sweep` ("zero1" only) gradients are reduced in the step, which updates each while its
        sum is in the cache: the fewest bytes, the same bits. `norm_ranks` are the ranks of all
        models, such as data x tensor, whose gradients `max_norm` is for; they step together.
        Instead of `max_norm`, `group_max_norms` clips the gradients of each `norm_group` of
        parameters by their own norm: one number a group, 0 for one that is not clipped. The
        learning rate of a group is `learning_rate` times its number in `group_rate_factors`, and
        `group_weight_decays` has one for each group instead of `weight_decay`.

        With `loss_scale` above 0, a power of two such as 65536, the caller multiplies its loss by
        Optimizer.loss_scale. It grows by `loss_scale_growth` (0: 2) after `loss_scale_window` good
        steps (0: 2000), and is multiplied by `loss_scale_backoff` (0: 0.5) after a step with an inf
        or NaN, which all ranks skip: from the overflow number `loss_scale_hysteresis` (0: 1) since
        it grew, and not below `loss_scale_floor` (0: 1, or `loss_scale` if that is less).

        With `offload_path`, a directory, state lies in a file there that has no name, and streams
        through `offload_buffer_bytes` of memory (0: 8 MiB) at each step; `offload_ratio` is the
        part of it that does (0: all). The bits are the same.

        With `master_weights` parameters of f16 and bf16 are the roundings of masters of f32, which
        the rule changes and a function of one's own sees. With `stochastic_rounding` those of bf16
        are rounded by chance, with draws that `rounding_seed` and the element's number decide.
        """
        options = _native.trireme_optimizer_options(
            struct_size=ctypes.sizeof(_native.trireme_optimizer_options),
            flags=(_native.TRIREME_OPTIMIZER_FLAG_NESTEROV if nesterov else 0)
            | (_native.TRIREME_OPTIMIZER_FLAG_ONE_SWEEP if one_sweep else 0)
            | (_native.TRIREME_OPTIMIZER_FLAG_CENTERED if centered else 0)
            | (_native.TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS if master_weights else 0)
            | (_native.TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING if stochastic_rounding else 0),
            rounding_seed=in_range(rounding_seed, 64, "rounding_seed"),
            state_count=in_range(states, 32, "states"),
            learning_rate=learning_rate or 0.0,
            momentum=momentum,
            beta1=or_default(beta1, "beta1"),
            beta2=or_default(beta2, "beta2"),
            epsilon=or_default(epsilon, "epsilon"),
            weight_decay=weight_decay,
            max_norm=max_norm,
            max_value=max_value,
            check_every=in_range(check_every, 64, "check_every"),
            norm_ranks=None if norm_ranks is None else norm_ranks._handle,
            loss_scale=loss_scale,
            loss_scale_growth=loss_scale_growth,
            loss_scale_backoff=loss_scale_backoff,
            loss_scale_floor=loss_scale_floor,
            loss_scale_window=in_range(loss_scale_window, 64, "loss_scale_window"),
            offload_path=None if offload_path is None else os.fsencode(offload_path),
            offload_ratio=offload_ratio,
            offload_buffer_bytes=in_range(offload_buffer_bytes, 64, "offload_buffer_bytes"),
            loss_scale_hysteresis=in_range(loss_scale_hysteresis, 64, "loss_scale_hysteresis"),
            trust_coefficient=or_default(trust_coefficient, "trust_coefficient"),
            max_trust=max_trust,
            beta2_decay=or_default(beta2_decay, "beta2_decay"),
            max_update_rms=or_default(max_update_rms, "max_update_rms"),
            min_parameter_rms=or_default(min_parameter_rms, "min_parameter_rms"),
            orthogonal_steps=in_range(orthogonal_steps, 32, "orthogonal_steps"),
            rate_adjustment=number_of(rate_adjustment, RATE_ADJUSTMENTS, "rate_adjustment"),
        )
        for name, numbers in (
            ("group_max_norms", group_max_norms),
            ("group_rate_factors", group_rate_factors),
            ("group_weight_decays", group_weight_decays),
            ("group_flags", elementwise_groups),
        ):
            count = len(numbers)
            if count == 0:
                continue
            if options.group_count not in (0, count):
                raise InvalidArgumentError(
                    f"{name} has {count} numbers, but another list {options.group_count}",
                    _native.TRIREME_ERROR_INVALID_ARGUMENT,
                )
            options.group_count = count
            if name == "group_flags":
                flag = _native.TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE
                options.group_flags = (c_uint32 * count)(*(flag if on else 0 for on in numbers))
            else:
                setattr(options, name, (c_double * count)(*numbers))
        number = 0
        self._asked: Asked | None = None  # of the schedule
        self._rule: _UserRule | None = None
        if callable(rule):
            number = next(_rule_numbers)
            self._rule = _UserRule(rule, states)
            options.kind = _native.TRIREME_RULE_USER
            options.update = _update_callback
            options.user_data = number
        else:
            options.kind = number_of(rule, OPTIMIZERS, "rule")
        handle = c_void_p()
        check(library.trireme_optimizer_create(model._handle, byref(options), byref(handle)))
        self._token = handle.value
        self._owner: Owner | None = Owner(_destroy, self._token, number)
        self._model = model
        if self._rule is not None:
            self._rule.owner = weakref.ref(self._owner)
            _rules[number] = self._rule
        if learning_rate == 0:  # the library's 0 means its default
            self.learning_rate = 0.0

    def close(self) -> None:
        """Gives the state back once no view of it and no Trainer is left.

        The model may then get another; while a Trainer of this one is open it may not, and the next
        raises InvalidStateError. That Trainer goes on.
        """
        self._owner = None

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._owner is None

    @property
    def _handle(self) -> int | None:
        if self._owner is None:
            raise InvalidHandleError(
                "the optimizer is closed", _native.TRIREME_ERROR_INVALID_HANDLE
            )
        return self._token

    @property
    def model(self) -> Model:
        """The model it updates."""
        return self._model

    def __enter__(self) -> Optimizer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self) -> None:
        """Ends a step: waits for the reductions, clips and updates the parameters. Collective."""
        code = _step(self._handle)
        if code:
            raise self._cause(code)

    def join(self) -> int:
        """Follows the steps of ranks that still have data, and answers how many there were.

        For a rank of an uneven model that has run out of it. Collective: ends when all ranks have
        come here; all then hold the same parameters.
        """
        steps = c_uint64()
        code = _join(self._handle, byref(steps))
        if code:
            raise self._cause(code)
        return steps.value

    def _cause(self, code: int) -> BaseException:
        """Why a step failed; what the caller's own function raised in it is not left for later."""
        return caused(last_failure(code), self._take_error())

    def _take_error(self) -> BaseException | None:
        """What a rule, a schedule or a hook raised first, once; all of them forget theirs."""
        kept = (self._rule, self._asked, self._model._hook)
        errors = [one.take_error() for one in kept if one is not None]
        return next((error for error in errors if error is not None), None)

    @property
    def learning_rate(self) -> float:
        """Of the steps that follow; what a schedule multiplies. All ranks must set the same."""
        rate = c_double()
        check(library.trireme_optimizer_get_learning_rate(self._handle, byref(rate)))
        return rate.value

    @learning_rate.setter
    def learning_rate(self, learning_rate: float) -> None:
        check(library.trireme_optimizer_set_learning_rate(self._handle, learning_rate))

    def set_schedule(self, schedule: Schedule | None) -> None:
        """Multiplies the learning rate of each step by the factor of a schedule; None ends that.

        All ranks must set the same, and again after load(): the schedule then goes on where the
        training was saved. What a function of one's own raises comes out of step(), which has then
        changed nothing and may be called again.
        """
        if schedule is None:
            check(library.trireme_optimizer_set_schedule(self._handle, None))
            self._asked = None
            return
        options, asked = schedule._options()
        check(library.trireme_optimizer_set_schedule(self._handle, byref(options)))
        self._asked = asked

    @property
    def step_rate(self) -> float:
        """The learning rate of the next step, by the schedule; without factors of groups."""
        rate = c_double()
        code = library.trireme_optimizer_get_step_rate(self._handle, byref(rate))
        if code:
            failure = last_failure(code)
            raise (self._asked.take_error() if self._asked is not None else None) or failure
        return rate.value

    def set_group_rate_factor(self, group: int, factor: float) -> None:
        """Sets one number of `group_rate_factors`, for the steps that follow. The same on all."""
        number = in_range(group, 64, "group")
        check(library.trireme_optimizer_set_group_rate_factor(self._handle, number, factor))

    @property
    def step_count(self) -> int:
        """How many steps were made."""
        count = c_uint64()
        check(library.trireme_optimizer_get_step_count(self._handle, byref(count)))
        return count.value

    @property
    def gradient_norm(self) -> float:
        """The global L2 norm of the last step's gradients before clipping; needs `max_norm`."""
        norm = c_double()
        check(library.trireme_optimizer_get_gradient_norm(self._handle, byref(norm)))
        return norm.value

    def group_norm(self, group: int) -> float:
        """The L2 norm of the last step's gradients of one group before clipping.

        Needs `group_max_norms`.
        """
        norm = c_double()
        number = in_range(group, 64, "group")
        check(library.trireme_optimizer_get_group_norm(self._handle, number, byref(norm)))
        return norm.value

    @property
    def loss_scale(self) -> float:
        """What the loss of the next backward pass is multiplied by; 1 without a loss scale."""
        scale = c_double()
        check(library.trireme_optimizer_get_loss_scale(self._handle, byref(scale)))
        return scale.value

    def loss_scale_info(self) -> LossScaleInfo:
        """How the last step went with the loss scale."""
        found = _native.trireme_loss_scale_info(
            struct_size=ctypes.sizeof(_native.trireme_loss_scale_info)
        )
        check(library.trireme_optimizer_get_loss_scale_info(self._handle, byref(found)))
        return LossScaleInfo(
            found.scale,
            bool(found.skipped),
            bool(found.at_floor),
            found.clean_steps,
            found.overflows,
            found.skipped_steps,
            None if found.parameter == 2**64 - 1 else found.parameter,
            None if found.rank < 0 else found.rank,
        )

    def ranges(self) -> list[StateRange]:
        """Where the state of training lies: parameters, frozen ones too, and state vectors.

        Over all ranks the ranges hold every element once, whatever the strategy. numpy.asarray() of
        `data` makes no copy. Whoever writes to it between steps changes this rank's copy only, or
        everybody's where ranks share the parameters, and does so before any unit is gathered since
        the last step, load() or Model.set_parameters(): gathered copies may stay.
        """
        count = c_uint64()
        check(library.trireme_optimizer_get_range_count(self._handle, byref(count)))
        return [self._range(index) for index in range(count.value)]

    def _range(self, index: int) -> StateRange:
        found = _native.trireme_state_range(struct_size=ctypes.sizeof(_native.trireme_state_range))
        check(library.trireme_optimizer_get_range(self._handle, index, byref(found)))
        return StateRange(
            STATES.get(found.kind, "unknown"),
            found.vector,
            found.parameter,
            found.name.decode(),
            dtype_name(found.dtype),
            tuple(found.shape[: found.dimensions]),
            found.first,
            found.count,
            view_of(
                found.data, found.count, size_of(found.dtype), LETTERS[found.dtype], self._owner
            ),
        )

    def save(self) -> bytes:
        """What this rank holds of the training, for load(). Every rank saves after the same step.

        Parameters, state of the update rule, number of steps and learning rate, with a description
        of the layout and a checksum. Waits for no peer.
        """
        size = c_uint64()
        check(library.trireme_optimizer_get_saved_bytes(self._handle, byref(size)))
        state = _native.new_bytes(size.value)
        address = _native.address_of(memoryview(state))
        check(library.trireme_optimizer_save(self._handle, address, size.value, None))
        return state

    def load(self, state: Any) -> None:
        """Takes back what save() gave on this rank. Collective.

        The model, its options, strategy and world size, and the rule must be those of the training
        that was saved. Nothing changes unless all ranks can load parts of the same step.
        """
        view, address, _count, _code = readable(state, None, "state")
        check(library.trireme_optimizer_load(self._handle, address, view.nbytes))

    def __repr__(self) -> str:
        return f"<trireme.Optimizer{', closed' if self.closed else ''}>"


# A rule runs inside the library, inside these.
_request.called_back.add(Optimizer.step.__code__)
_request.called_back.add(Optimizer.join.__code__)
assert Optimizer.step_rate.fget is not None
_request.called_back.add(Optimizer.step_rate.fget.__code__)
