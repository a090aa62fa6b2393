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
        """`total_steps` is the length of "linear", "cosine" and "one_cycle".

        In the first `warm_up_steps` the factor rises to 1. It begins with 1 / warm_up_steps, and
        is 1 in the last of these steps. If it begins with `warm_up_factor`, or with 0
        (`from_zero`), it is 1 after them. "linear" and "cosine" then fall to `end_factor`.

        "one_cycle" begins with 1 / `div_factor` (25). It rises to 1 in the first part of its steps,
        `pct_start` (0.3) of them. Then it falls to the first factor divided by `final_div_factor`
        (1e4). With `linear_annealing` it follows straight lines.
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
        """The struct for one optimizer or one call. The Asked keeps an exception for it alone."""
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
