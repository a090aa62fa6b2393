"""Costs of a pipeline's layers as they were measured, and the move of a training to other cuts."""

from __future__ import annotations

import ctypes
from ctypes import byref
from typing import NamedTuple, Sequence

from . import _native
from ._communicator import Communicator
from ._errors import check
from ._fields import instance
from ._native import library
from ._values import in_range, nanoseconds


class RebalanceReport(NamedTuple):
    """Bytes that moved, and the memory for it, on this rank; rebalance.h describes each number."""

    sent_bytes: int  #: State that went to other ranks.
    received_bytes: int  #: State that came from other ranks.
    kept_bytes: int  #: State that stayed on this rank.
    buffer_bytes: int  #: Both buffers.
    peak_bytes: int  #: Both models, both optimizers and the buffers.


class MovedTraining:
    """The part of an optimizer that takes over the training of another one."""

    @property
    def _handle(self) -> int | None:
        raise NotImplementedError

    def take_over(
        self,
        old: MovedTraining,
        communicator: Communicator,
        *,
        cuts: Sequence[int] = (),
        part: int = 0,
        buffer_bytes: int = 0,
        timeout: float | None = None,
    ) -> RebalanceReport:
        """Moves a training here between steps, such as to other cuts of a pipeline.

        `old` is the optimizer that has made the steps so far. This one's model has the parameters
        that this rank has from now on. It gets parameters, state and counters; set its schedule of
        rates again. If the call fails, `old` goes on as it was. It may not if a rank is lost or
        late, or if memory or a file fails it in the middle of the move. `cuts` are compared. `part`
        is the rank's place along tensor, if that has several.

        Collective over all ranks of `communicator`: those of the old models and of the new ones.
        """
        numbers = [in_range(cut, 64, "cut") for cut in cuts]
        options = _native.trireme_rebalance_options(
            struct_size=ctypes.sizeof(_native.trireme_rebalance_options),
            part=in_range(part, 32, "part"),
            communicator=instance(Communicator, communicator, "communicator")._handle,
            cuts=(ctypes.c_uint64 * max(1, len(numbers)))(*numbers),
            cut_count=len(numbers),
            buffer_bytes=in_range(buffer_bytes, 64, "buffer_bytes"),
            timeout_ns=nanoseconds(timeout),
        )
        report = _native.trireme_rebalance_report(
            struct_size=ctypes.sizeof(_native.trireme_rebalance_report)
        )
        source = instance(MovedTraining, old, "old")._handle
        check(
            library.trireme_parallel_rebalance(source, self._handle, byref(options), byref(report))
        )
        return RebalanceReport(*(getattr(report, field) for field in RebalanceReport._fields))
