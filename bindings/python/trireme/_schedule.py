"""Learning rates that follow a plan."""

from __future__ import annotations

import ctypes
import itertools
import math
import weakref
from ctypes import byref, c_double
from typing import Any, Callable, ClassVar, Union

from . import _native, _request
from ._errors import InvalidArgumentError, last_failure
from ._fields import OfKind, function
from ._native import library
from ._values import SCHEDULES, Name, in_range, number_of

Factor = Callable[[int], float]


class Asked:
    """A function of the caller that answers factors, and what it raised."""

    def __init__(self, function: Factor) -> None:
        self.function = function
        self.error: BaseException | None = None
        self.number = next(_numbers)
        _asked[self.number] = self

    def take_error(self) -> BaseException | None:
        """The exception that the function raised; this forgets it."""
        error, self.error = self.error, None
        return error


_numbers = itertools.count(1)
# The optimizer that has the schedule holds it. The library may keep the number longer, but calls
# the function only inside calls of that optimizer, its trainers, and its model, which hold it.
_asked: weakref.WeakValueDictionary[int, Asked] = weakref.WeakValueDictionary()


def _answer(step: int, number: int) -> float:
    asked = _asked.get(number)
    if asked is None:
        return math.nan
    try:
        return float(asked.function(step))
    except BaseException as error:  # nothing may go through the library; the call raises it
        asked.error = error
        return math.nan


_callback = _native.trireme_schedule_callback(_answer)


def _value(options: Any, step: int, asked: Asked | None) -> float:
    factor = c_double()
    number = in_range(step, 64, "step")
    code = library.trireme_schedule_value(byref(options.base), number, byref(factor))
    if code:
        failure = last_failure(code)
        raise (asked.take_error() if asked is not None else None) or failure
    return factor.value


class ScheduleOptions(OfKind):
    """A schedule of the library with its numbers: CosineSchedule, LinearSchedule and their like."""

    _of: ClassVar[dict[int, type[ScheduleOptions]]] = {}  # the classes by their kind

    def __init_subclass__(cls) -> None:
        ScheduleOptions._of[cls._kind] = cls

    def factor(self, step: int) -> float:
        """The factor of the step that comes after `step` others."""
        return _value(self._raw(), step, None)


class Schedule:
    """A factor for each step, by which the learning rate is multiplied; see schedule.h.

    It is a schedule of the library, such as CosineSchedule, or a function that answers the factor
    of a step, counted from 0: finite and 0 or more, on all ranks the same. In the short form
    "constant", "linear", "cosine" or "one_cycle" goes before the keywords of its class.

    >>> import trireme
    >>> plan = trireme.Schedule("linear", total_steps=12, warm_up_steps=4)
    >>> plan.options == trireme.LinearSchedule(12, warm_up_steps=4)
    True
    >>> [plan.factor(step) for step in range(0, 13, 2)]
    [0.25, 0.75, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    def __init__(self, kind: Union[Name, ScheduleOptions, Factor], **options: Any) -> None:
        """The keywords are those of the class of the kind."""
        self.options: ScheduleOptions | None = None
        self._function: Factor | None = None
        if isinstance(kind, (str, int)):
            number = number_of(kind, SCHEDULES, "kind")
            made = ScheduleOptions._of.get(number)
            if made is None:
                raise InvalidArgumentError(
                    f"kind {kind!r} is no schedule of the library",
                    _native.TRIREME_ERROR_INVALID_ARGUMENT,
                )
            self.options = made(**options)
            return
        if options:
            raise TypeError(f"Schedule() takes no {next(iter(options))!r} without a kind's name")
        if isinstance(kind, ScheduleOptions):
            self.options = kind
        else:
            self._function = function(kind, "schedule")

    def _options(self) -> tuple[Any, Asked | None]:
        """The struct for one optimizer or one call. The Asked keeps an exception for it alone."""
        if self.options is not None:
            return self.options._raw(), None
        assert self._function is not None
        asked = Asked(self._function)
        raw = _native.trireme_user_schedule_options(factor=_callback, user_data=asked.number)
        raw.base.struct_size = ctypes.sizeof(raw)
        raw.base.kind = _native.TRIREME_SCHEDULE_KIND_USER
        return raw, asked

    def factor(self, step: int) -> float:
        """The factor of the step that comes after `step` others."""
        options, asked = self._options()
        return _value(options, step, asked)


# A function runs inside the library, inside this.
_request.called_back.add(_value.__code__)
