"""A caller's own work on each bucket of gradients."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import weakref
from typing import Any, Callable, Iterator, NamedTuple

from . import _native
from ._buffer import Owner, view_of
from ._values import LETTERS, MOMENTS, dtype_name, size_of


class BucketPart(NamedTuple):
    """A stretch of one parameter inside a bucket."""

    parameter: int  #: Number of the parameter.
    first: int  #: Number of the parameter's element with which the stretch begins, from 0.
    count: int  #: Elements; 1 or more.
    position: int  #: Where it begins in `data`, in elements.


@dataclasses.dataclass(frozen=True)
class Bucket:
    """One bucket of gradients, for a hook.

    "before": this rank's contribution is complete and no peer sees it yet. "after": the part of
    the reduced gradients that this rank updates, before it is clipped. `data` may be changed until
    the hook returns; numpy.asarray() of it makes no copy.
    """

    moment: str  #: "before" or "after".
    number: int  #: Number of the bucket, from 0 in the first step's order of reduction.
    data: memoryview[float]  #: The gradients.
    parts: tuple[BucketPart, ...]  #: Stretches of parameters, in the order of `data`.
    dtype: str  #: Type of the elements, "f32" or "f64".
    backward_pass: int  #: "before": number of the pass in the step, from 0. "after": 0.


Hook = Callable[[Bucket], object]


class BucketHook:
    """A caller's function and what it raised first since the step began."""

    def __init__(self, function: Hook) -> None:
        self.function = function
        self.owner: Callable[[], Owner | None] = lambda: None
        self.error: BaseException | None = None
        self.number = next(_numbers)
        _hooks[self.number] = self

    def run(self, raw: Any) -> None:
        size, letter = size_of(raw.dtype), LETTERS[raw.dtype]
        self.function(
            Bucket(
                MOMENTS[raw.moment],
                raw.bucket,
                view_of(raw.data, raw.count, size, letter, self.owner()),
                tuple(_parts(raw)),
                dtype_name(raw.dtype),
                getattr(raw, "pass"),
            )
        )

    def take_error(self) -> BaseException | None:
        """The exception that the function raised; this forgets it."""
        error, self.error = self.error, None
        return error


def _parts(raw: Any) -> Iterator[BucketPart]:
    first = ctypes.addressof(raw.parts.contents)
    for i in range(raw.part_count):  # a later library has larger parts
        part = _native.trireme_bucket_part.from_address(first + i * raw.part_bytes)
        yield BucketPart(part.parameter, part.first, part.count, part.position)


_numbers = itertools.count(1)
# The model holds the hook, and its optimizer the model. The library itself may keep them longer,
# but calls the hook from their methods only.
_hooks: weakref.WeakValueDictionary[int, BucketHook] = weakref.WeakValueDictionary()


def _run(raw: Any, number: int) -> int:
    hook = _hooks.get(number)
    if hook is None:
        return 1
    try:
        hook.run(raw.contents)
    except BaseException as error:  # nothing may go through the library; the step raises it
        if hook.error is None:
            hook.error = error
        return 1
    return 0


callback = _native.trireme_bucket_callback(_run)
