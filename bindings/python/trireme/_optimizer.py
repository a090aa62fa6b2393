"""The update rule of a model, run on the part of it that this rank owns."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import weakref
from ctypes import byref, c_double, c_uint64, c_void_p
from typing import Any, Sequence, Union

from . import _native, _request, _user_rule
from ._abi.options import Clipping, LossScale, Offload, ParameterGroup
from ._abi.rule_options import RULES, UserRule
from ._buffer import Owner, view_of
from ._communicator import Communicator
from ._counters import CountedSteps
from ._errors import InvalidHandleError, caused, check, last_failure
from ._fields import Rule, bits_of, instance, number, options_of, pointer_to, sequence_of, whole
from ._model import Model
from ._native import library
from ._offload import OffloadedState
from ._rebalance import MovedTraining
from ._schedule import Asked, Factor, Schedule, ScheduleOptions
from ._user_rule import UpdateFunction
from ._values import LETTERS, STATES, Name, dtype_name, in_range, number_of, readable, size_of

_step = library.trireme_optimizer_step
_step_together = library.trireme_optimizer_step_together
_join = library.trireme_optimizer_join


@dataclasses.dataclass(frozen=True)
class LossScaleInfo:
    """The loss scale, and how the last step went with it."""

    scale: float  #: The caller multiplies the next loss by this.
    skipped: bool  #: The last step was skipped, as a gradient was inf or NaN.
    at_floor: bool  #: The last step overflowed at the lowest scale, and raised InvalidStateError.
    clean_steps: int  #: Steps since the scale last grew or a step was skipped.
    overflows: int  #: Skipped steps since the scale last grew.
    skipped_steps: int  #: All skipped steps.
    #: If the last step was skipped: the lowest number of a parameter that overflowed; None: all of
    #: them are in other models that skipped with this one.
    parameter: int | None
    #: The lowest rank that handed in an inf or NaN for it; None: only the sum, or a hook, made one.
    rank: int | None


@dataclasses.dataclass(frozen=True)
class StateRange:
    """A stretch of the state of training that this rank owns."""

    #: "parameter", "optimizer" for a state vector of the rule, or "rows" and "columns" of adafactor.
    kind: str
    vector: int  #: Number of the state vector; optimizer.h lists them. Of adamw: 0 is m, 1 is v.
    parameter: int  #: Number of the parameter.
    name: str  #: Its name.
    dtype: str  #: Type of its elements.
    shape: tuple[int, ...]  #: Its whole shape; of rows or columns their number.
    first: int  #: Index of the range's first element in that shape, in row-major order.
    count: int  #: Elements; 1 or more.
    #: The elements, in the library's own memory. Empty where they lie in a file or on a device: read_range()
    #: copies them.
    data: memoryview[float]


def _destroy(handle: int, number: int) -> None:
    library.trireme_optimizer_destroy(handle)
    # From now on views of its memory would dangle. A call under way goes on without the function.
    _user_rule.runners.pop(number, None)


def _rule_of(rule: Any) -> Union[Rule, int]:
    """Options of a rule, or the number of one with its defaults."""
    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, type):
        raise TypeError(f"rule is the class {rule.__name__}; {rule.__name__}() is a rule")
    return UserRule(rule) if callable(rule) else number_of(rule, RULES, "rule")


class Optimizer(OffloadedState, CountedSteps, MovedTraining):
    """The update rule of a sealed model.

    `rule` is AdamW(beta1=0.95) or another Rule; or a name such as "adamw", with the defaults of
    that rule; or a function of one's own, for short, or UserRule(function, state_count=2).

    step() calls a function with an Update for each piece that this rank owns. The function changes
    `update.parameters` in place. If it raises, the step fails on all ranks, and step() of its rank
    raises the same exception. A function that treats each element alone gives the same bits on any
    number of ranks.
    """

    def __init__(
        self,
        model: Model,
        rule: Union[Rule, Name, UpdateFunction],
        *,
        learning_rate: float | None = None,
        weight_decay: float = 0.0,
        clipping: Clipping | float | None = None,
        groups: Sequence[ParameterGroup] = (),
        loss_scale: LossScale | float | None = None,
        offload: Offload | str | os.PathLike[str] | None = None,
        norm_ranks: Communicator | None = None,
        check_every: int = 0,
        one_sweep: bool = False,
        master_weights: bool = False,
        stochastic_rounding: bool = False,
        rounding_seed: int = 0,
    ) -> None:
        """Collective: all ranks name the same options.

        `learning_rate` None is the rule's default: 0.001, or 0.01 for Adafactor. `clipping` limits
        gradients; a number is its `max_norm`, the limit of the global norm. `groups` has rate,
        decay and norm of each group of parameters. A parameter names its group by the group's place
        in this list: `parameter_group`, which is 0 without `groups`. `norm_ranks` are the ranks of
        all models that step together, such as data x tensor. Their gradients have one norm, and
        with `loss_scale` they skip a step together. Each `check_every`-th step includes
        Model.check_replicas().

        With `loss_scale` the caller multiplies its loss by Optimizer.loss_scale, and all ranks skip
        a step with an inf or NaN; a number is its `initial_scale`. `offload` puts the state into a
        file without a name, in the directory that it names. A directory alone will do. The state
        streams through memory at each step. The bits are the same.

        With `one_sweep` ("zero1" only) the step reduces the gradients, and updates each element
        while its sum is in the cache: the fewest bytes, the same bits. With `master_weights` the
        rule, or the caller's own function, changes masters of f32; parameters of f16 and bf16 are
        their roundings. With `stochastic_rounding` the step rounds parameters of bf16 up or down by
        chance. Each draw depends on `rounding_seed`, the step, and the number of the element.
        """
        instance(Model, model, "model")
        chosen = _rule_of(rule)
        listed = sequence_of(ParameterGroup, groups, "groups")
        rate = None if learning_rate is None else number(learning_rate, "learning_rate")
        options = _native.trireme_optimizer_options(
            struct_size=ctypes.sizeof(_native.trireme_optimizer_options),
            flags=bits_of(
                (_native.TRIREME_OPTIMIZER_FLAG_ONE_SWEEP, one_sweep, "one_sweep"),
                (_native.TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS, master_weights, "master_weights"),
                (
                    _native.TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING,
                    stochastic_rounding,
                    "stochastic_rounding",
                ),
            ),
            learning_rate=rate or 0.0,
            weight_decay=number(weight_decay, "weight_decay"),
            clipping=pointer_to(options_of(Clipping, clipping, "clipping")),
            group_count=len(listed),
            loss_scale=pointer_to(options_of(LossScale, loss_scale, "loss_scale")),
            offload=pointer_to(options_of(Offload, offload, "offload")),
            norm_ranks=None
            if norm_ranks is None
            else instance(Communicator, norm_ranks, "norm_ranks")._handle,
            check_every=whole(check_every, 64, "check_every"),
            rounding_seed=whole(rounding_seed, 64, "rounding_seed"),
        )
        if listed:
            raw_groups = (group._raw() for group in listed)
            options.groups = (_native.trireme_parameter_group * len(listed))(*raw_groups)
        self._asked: Asked | None = None  # of the schedule
        self._rule: _user_rule.Runner | None = None
        if isinstance(chosen, Rule):
            raw = chosen._raw()
            if isinstance(chosen, UserRule):
                self._rule = _user_rule.Runner(chosen.update, chosen.state_count)
                raw.update = _user_rule.callback
                raw.user_data = self._rule.number
            options.rule = ctypes.pointer(raw.base)
        else:
            options.kind = chosen
        handle = c_void_p()
        check(library.trireme_optimizer_create(model._handle, byref(options), byref(handle)))
        self._token = handle.value
        own = 0 if self._rule is None else self._rule.number
        self._owner: Owner | None = Owner(_destroy, self._token, own)
        self._model = model
        model._updater = weakref.ref(self)
        if self._rule is not None:
            self._rule.owner = weakref.ref(self._owner)
            _user_rule.runners[own] = self._rule
        if rate == 0:  # the library's 0 means its default
            self.learning_rate = 0.0

    def close(self) -> None:
        """Gives the state back once no view of it and no Trainer is left.

        The model may then get another one. While a Trainer of this one is open, the Trainer goes on
        with it, and a new Optimizer raises InvalidStateError.
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
        self._finish(_step(self._handle))

    @staticmethod
    def step_together(optimizers: Sequence[Optimizer]) -> None:
        """Ends a step of several optimizers of this rank with one norm, over all their models.

        Such as those of experts and of the rest of a network. All have the same `clipping.max_norm`
        and `loss_scale`, and skip a step together. None is named twice, and none is of an uneven
        model. Collective: all ranks that have the norm of one optimizer have that of the others, too.
        """
        listed = sequence_of(Optimizer, optimizers, "optimizers")
        handles = (c_void_p * len(listed))(*(each._handle for each in listed))
        code = _step_together(handles, len(listed))
        failure = last_failure(code) if code else None
        errors = [each._take_error() for each in listed]
        if failure is not None:
            raise caused(failure, next((error for error in errors if error is not None), None))

    def join(self) -> int:
        """Follows the steps of ranks that still have data, and answers how many there were.

        For a rank of an uneven model that has run out of data. Collective: ends when all ranks have
        called it; all then hold the same parameters.
        """
        steps = c_uint64()
        self._finish(_join(self._handle, byref(steps)))
        return steps.value

    def _finish(self, code: int) -> None:
        """Ends a step. No later one raises an exception of this one."""
        failure = last_failure(code) if code else None
        error = self._take_error()
        if failure is not None:
            raise caused(failure, error)

    def _take_error(self) -> BaseException | None:
        """The first exception of a rule, a schedule or a hook; all of them forget theirs."""
        kept = (self._rule, self._asked, self._model._hook)
        errors = [one.take_error() for one in kept if one is not None]
        return next((error for error in errors if error is not None), None)

    def _take_schedule_error(self) -> BaseException | None:
        """The exception of a schedule; this forgets it."""
        return None if self._asked is None else self._asked.take_error()

    @property
    def learning_rate(self) -> float:
        """The rate of the next steps, without the schedule's factor. All ranks set the same."""
        rate = c_double()
        check(library.trireme_optimizer_get_learning_rate(self._handle, byref(rate)))
        return rate.value

    @learning_rate.setter
    def learning_rate(self, learning_rate: float) -> None:
        check(library.trireme_optimizer_set_learning_rate(self._handle, learning_rate))

    def set_schedule(self, schedule: Schedule | ScheduleOptions | Factor | None) -> None:
        """Multiplies the learning rate of each step by the factor of a schedule; None ends that.

        All ranks must set the same, and again after load(): the schedule then goes on where the
        training was saved. If the caller's own function raises, step() raises the same exception.
        Nothing has changed then, and the caller may call step() again.
        """
        if schedule is None:
            check(library.trireme_optimizer_set_schedule(self._handle, None))
            self._asked = None
            return
        plan = schedule if isinstance(schedule, Schedule) else Schedule(schedule)
        options, asked = plan._options()
        check(library.trireme_optimizer_set_schedule(self._handle, byref(options.base)))
        self._asked = asked

    @property
    def step_rate(self) -> float:
        """The learning rate of the next step, by the schedule; without factors of groups."""
        rate = c_double()
        code = library.trireme_optimizer_get_step_rate(self._handle, byref(rate))
        if code:
            failure = last_failure(code)
            error = self._take_schedule_error()
            raise failure if error is None else error
        return rate.value

    def set_group_rate_factor(self, group: int, factor: float) -> None:
        """Sets `rate_factor` of a ParameterGroup for the next steps. All ranks set the same."""
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
        """The global L2 norm of the last step's gradients before clipping.

        Needs `max_norm` of Clipping.
        """
        norm = c_double()
        check(library.trireme_optimizer_get_gradient_norm(self._handle, byref(norm)))
        return norm.value

    def group_norm(self, group: int) -> float:
        """The L2 norm of the last step's gradients of one group before clipping.

        Needs `max_norm` of a ParameterGroup.
        """
        norm = c_double()
        number = in_range(group, 64, "group")
        check(library.trireme_optimizer_get_group_norm(self._handle, number, byref(norm)))
        return norm.value

    @property
    def loss_scale(self) -> float:
        """The caller multiplies the loss of the next backward pass by it; 1 without loss scale."""
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
        `data` makes no copy. The caller may write to `data` between steps. A write changes this
        rank's copy only, or that of all ranks where they share the parameters. Write before any
        unit is gathered since the last step, load() or Model.set_parameters(): gathered copies may
        stay.
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
        """This rank's part of the training, for load(). Every rank saves after the same step.

        It holds parameters, state of the update rule, number of steps, learning rate and loss
        scale, with a description of the layout and a checksum. The call waits for no peer.
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
_request.called_back.add(Optimizer.step_together.__code__)
assert Optimizer.step_rate.fget is not None
_request.called_back.add(Optimizer.step_rate.fget.__code__)
