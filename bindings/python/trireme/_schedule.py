"""Learning rates that follow a plan."""

from __future__ import annotations

import ctypes
import itertools
import math
import weakref
from ctypes import byref, c_double
from typing import Any, Callable, Union

from . import _native, _request
from ._errors import last_failure
from ._native import library
from ._values import SCHEDULES, Name, in_range, number_of, or_default

Factor = Callable[[int], float]


class Asked:
    """A function of the caller that answers factors, and what it raised."""

    def __init__(self, function: Factor) -> None:
        self.function = function
        self.error: BaseException | None = None
        self.number = next(_numbers)
        _asked[self.number] = self

    def take_error(self) -> BaseException | None:
        """What the function raised, once."""
        error, self.error = self.error, None
        return error


_numbers = itertools.count(1)
# Who set the schedule holds it. The library may keep it longer, but asks in calls of that one only.
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


class Schedule:
    """A factor for each step, by which the learning rate is multiplied; see schedule.h.

    The kinds are "constant", "linear", "cosine", "one_cycle", or a function that answers the factor
    of a step, counted from 0: finite and 0 or more, on all ranks the same.

    >>> import trireme
    >>> plan = trireme.Schedule("linear", total_steps=12, warm_up_steps=4)
    >>> [plan.factor(step) for step in range(0, 13, 2)]
    [0.25, 0.75, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    def __init__(
        self,
        kind: Union[Name, Factor],
        *,
        total_steps: int = 0,
        warm_up_steps: int = 0,
        warm_up_factor: float | None = None,
        from_zero: bool = False,
        end_factor: float = 0.0,
        pct_start: float | None = None,
        div_factor: float | None = None,
        final_div_factor: float | None = None,
        linear_annealing: bool = False,
    ) -> None:
        """`total_steps` is how long all but "constant" and a function take.

        In the first `warm_up_steps` the factor rises to 1: from 1 / warm_up_steps, which reaches 1
        in the last of them; or from `warm_up_factor`, or from 0 with `from_zero`, which reach it
        after them. "linear" and "cosine" then fall to `end_factor`. "one_cycle" rises in the part
        `pct_start` of its steps (0.3) from 1 / `div_factor` (25) to 1, and falls to that divided by
        `final_div_factor` (1e4), along straight lines with `linear_annealing`.
        """
        self._function: Factor | None = None
        number = _native.TRIREME_SCHEDULE_KIND_USER
        if callable(kind):
            self._function = kind
        else:
            number = number_of(kind, SCHEDULES, "kind")
        self._raw = _native.trireme_schedule_options(
            struct_size=ctypes.sizeof(_native.trireme_schedule_options),
            kind=number,
            flags=(_native.TRIREME_SCHEDULE_FLAG_FROM_ZERO if from_zero else 0)
            | (_native.TRIREME_SCHEDULE_FLAG_LINEAR_ANNEALING if linear_annealing else 0),
            total_steps=in_range(total_steps, 64, "total_steps"),
            warm_up_steps=in_range(warm_up_steps, 64, "warm_up_steps"),
            warm_up_factor=or_default(warm_up_factor, "warm_up_factor"),
            end_factor=end_factor,
            pct_start=or_default(pct_start, "pct_start"),
            div_factor=or_default(div_factor, "div_factor"),
            final_div_factor=or_default(final_div_factor, "final_div_factor"),
        )

    def _options(self) -> tuple[Any, Asked | None]:
        """For one who asks, alone: what a function raises is kept for that one."""
        options = _native.trireme_schedule_options.from_buffer_copy(self._raw)
        if self._function is None:
            return options, None
        asked = Asked(self._function)
        options.factor = _callback
        options.user_data = asked.number
        return options, asked

    def factor(self, step: int) -> float:
        """The factor of the step that comes after `step` others."""
        options, asked = self._options()
        factor = c_double()
        number = in_range(step, 64, "step")
        code = library.trireme_schedule_value(byref(options), number, byref(factor))
        if code:
            failure = last_failure(code)
            raise (asked.take_error() if asked is not None else None) or failure
        return factor.value


# A function runs inside the library, inside this.
_request.called_back.add(Schedule.factor.__code__)
