"""A caller's own update rule."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from typing import Any, Callable

from . import _native
from ._buffer import Owner, view_of
from ._values import LETTERS, dtype_name, size_of


@dataclasses.dataclass(frozen=True)
class Update:
    """One piece of the model for a caller's own rule: this rank's part of one parameter.

    The memoryviews are good until the rule returns; numpy.asarray() of one makes no copy.
    """

    parameter: int  #: Number of the parameter.
    first: int  #: Index, within the parameter, of the first element of this piece.
    count: int  #: Elements; 1 or more.
    step: int  #: Number of this step, from 1.
    learning_rate: float  #: Learning rate of this step, by the schedule and the group.
    dtype: str  #: Type of `parameters`, for example "f32".
    gradient_dtype: str  #: Of `gradients`, `states`: "f32" if `dtype` is "f16" or "bf16", else it.
    parameters: memoryview[float]  #: To be updated. f16 and bf16 show as 16-bit integers.
    gradients: memoryview[float]  #: Reduced and clipped; read-only.
    states: tuple[memoryview[float], ...]  #: `state_count` vectors; 0 before the first step.


UpdateFunction = Callable[[Update], object]


class Runner:
    """A caller's function and what it raised."""

    def __init__(self, function: UpdateFunction, state_count: int) -> None:
        self.function = function
        self.state_count = state_count
        self.owner: Callable[[], Owner | None] = lambda: None
        self.error: BaseException | None = None
        self.number = next(_numbers)

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
        """The exception that the function raised; this forgets it."""
        error, self.error = self.error, None
        return error


#: By number, those that the library may call. The optimizer holds its own one: a function may refer
#: to its optimizer, so nothing else may keep it alive.
runners: weakref.WeakValueDictionary[int, Runner] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def _update(piece: Any, number: int) -> int:
    rule = runners.get(number)
    if rule is None:  # closed meanwhile
        return 1
    try:
        rule.run(piece.contents)
    except BaseException as error:  # nothing may go through the library; step() raises it
        rule.error = error
        return 1
    return 0


callback = _native.trireme_update_callback(_update)
