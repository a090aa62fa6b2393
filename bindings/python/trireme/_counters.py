"""The counts of an optimizer: the state of training that is in no range."""

from __future__ import annotations

import ctypes
import dataclasses
from ctypes import byref, c_double, c_uint64
from typing import Any

from . import _native
from ._errors import check
from ._native import library
from ._values import in_range


@dataclasses.dataclass(frozen=True)
class OptimizerCounters:
    """The counts of an Optimizer, the same on all ranks: `optimizer.counters`.

    dataclasses.asdict() makes them plain numbers, for json; OptimizerCounters(**numbers) takes them
    back. A later release may count more, and then has another version.
    """

    steps: int  #: Steps that were made.
    learning_rate: float  #: The learning rate as set, without the factor of a schedule.
    loss_scale: float = 0.0  #: The caller multiplies the next loss by this; 0: no loss scale.
    clean_steps: int = 0  #: Steps since the scale grew or one was skipped.
    overflows: int = 0  #: Skipped steps since the scale grew.
    skipped_steps: int = 0  #: All skipped steps.
    #: For each parameter, the steps in which it had a gradient; with unused="skip" only.
    parameter_steps: tuple[int, ...] = ()
    #: For each group of parameters, its factor of the learning rate; empty without groups.
    group_rate_factors: tuple[float, ...] = ()
    version: int = _native.TRIREME_OPTIMIZER_COUNTERS_VERSION


class CountedSteps:
    """Gives the counts of an Optimizer, and goes on from them."""

    @property
    def _handle(self) -> int | None:
        raise NotImplementedError

    @property
    def counters(self) -> OptimizerCounters:
        """Its counts: with them and ranges(), a training goes on in another layout."""
        found = _new()
        check(library.trireme_optimizer_get_counters(self._handle, byref(found)))
        steps = (c_uint64 * found.parameter_count)()
        factors = (c_double * found.group_count)()
        found.parameter_steps, found.group_rate_factors = steps, factors
        check(library.trireme_optimizer_get_counters(self._handle, byref(found)))
        return OptimizerCounters(
            found.steps,
            found.learning_rate,
            found.loss_scale,
            found.clean_steps,
            found.overflows,
            found.skipped_steps,
            tuple(steps),
            tuple(factors),
            found.version,
        )

    def restore(self, counters: OptimizerCounters) -> None:
        """Goes on with a training whose ranges each rank has written with write_range(). Collective.

        Gives every rank what the owners of the ranges have written, and sets what the optimizer
        counts. Nothing changes unless all ranks give the same counters. A schedule is to be set again.
        """
        given = _new()
        given.version = in_range(counters.version, 32, "version")
        given.learning_rate = counters.learning_rate
        given.loss_scale = counters.loss_scale
        for name in ("steps", "clean_steps", "overflows", "skipped_steps"):
            setattr(given, name, in_range(getattr(counters, name), 64, name))
        steps = [in_range(steps, 64, "parameter_steps") for steps in counters.parameter_steps]
        given.parameter_steps = (c_uint64 * len(steps))(*steps)
        given.parameter_count = len(steps)
        factors = counters.group_rate_factors
        given.group_rate_factors = (c_double * len(factors))(*factors)
        given.group_count = len(factors)
        check(library.trireme_optimizer_restore(self._handle, byref(given)))


def _new() -> Any:
    size = ctypes.sizeof(_native.trireme_optimizer_counters)
    return _native.trireme_optimizer_counters(struct_size=size)
