"""Schedules of pipelines as data: made, checked, simulated, searched, drawn; layers cut to stages."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import byref, c_double, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any, Iterable, NamedTuple, Sequence

from . import _native
from ._errors import InvalidArgumentError, InvalidStateError, check
from ._native import library
from ._values import encoded, in_range, number_of

PIPELINE_KINDS = {
    "F": _native.TRIREME_PIPELINE_KIND_F,
    "I": _native.TRIREME_PIPELINE_KIND_I,
    "W": _native.TRIREME_PIPELINE_KIND_W,
    "B": _native.TRIREME_PIPELINE_KIND_B,
    "R": _native.TRIREME_PIPELINE_KIND_R,
    "SEND_F": _native.TRIREME_PIPELINE_KIND_SEND_F,
    "RECV_F": _native.TRIREME_PIPELINE_KIND_RECV_F,
    "SEND_B": _native.TRIREME_PIPELINE_KIND_SEND_B,
    "RECV_B": _native.TRIREME_PIPELINE_KIND_RECV_B,
    "GATHER": _native.TRIREME_PIPELINE_KIND_GATHER,
    "RELEASE": _native.TRIREME_PIPELINE_KIND_RELEASE,
    "REDUCE": _native.TRIREME_PIPELINE_KIND_REDUCE,
}
_KIND_NAMES = {number: name for name, number in PIPELINE_KINDS.items()}
PIPELINE_PLACEMENTS = {
    "loop": _native.TRIREME_PIPELINE_PLACEMENT_LOOP,
    "v": _native.TRIREME_PIPELINE_PLACEMENT_V,
    "wave": _native.TRIREME_PIPELINE_PLACEMENT_WAVE,
}
PIPELINE_FORMATS = {
    "text": _native.TRIREME_PIPELINE_FORMAT_TEXT,
    "csv": _native.TRIREME_PIPELINE_FORMAT_CSV,
    "drawing": _native.TRIREME_PIPELINE_FORMAT_DRAWING,
    "svg": _native.TRIREME_PIPELINE_FORMAT_SVG,
    "trace": _native.TRIREME_PIPELINE_FORMAT_TRACE,
}
PIPELINE_OBJECTIVES = {
    "makespan": _native.TRIREME_PIPELINE_OBJECTIVE_MAKESPAN,
    "span": _native.TRIREME_PIPELINE_OBJECTIVE_SPAN,
}
_RULES = {
    _native.TRIREME_PIPELINE_RULE_NONE: None,
    _native.TRIREME_PIPELINE_RULE_KNOWN: "known",
    _native.TRIREME_PIPELINE_RULE_RANK: "rank",
    _native.TRIREME_PIPELINE_RULE_ONCE: "once",
    _native.TRIREME_PIPELINE_RULE_COMPLETE: "complete",
    _native.TRIREME_PIPELINE_RULE_ORDER: "order",
    _native.TRIREME_PIPELINE_RULE_MESSAGE: "message",
    _native.TRIREME_PIPELINE_RULE_MESSAGE_ORDER: "message_order",
    _native.TRIREME_PIPELINE_RULE_CYCLE: "cycle",
    _native.TRIREME_PIPELINE_RULE_MEMORY: "memory",
    _native.TRIREME_PIPELINE_RULE_PAIR: "pair",
    _native.TRIREME_PIPELINE_RULE_UNIT: "unit",
}


class PipelineAction(NamedTuple):
    """One action of a rank."""

    kind: str  #: Such as "F", "I", "W", "B" or "SEND_F".
    stage: int  #: Number of the stage.
    micro_batch: int = 0  #: Number of the micro-batch; 0 for GATHER, RELEASE and REDUCE.
    pair: int = 0  #: A number that two neighbours share if they may overlap, else 0.


class StageCosts(NamedTuple):
    """Seconds and bytes of one stage."""

    forward: float = 0.0  #: Seconds of F.
    input: float = 0.0  #: Seconds of I, backward for the input.
    weight: float = 0.0  #: Seconds of W, backward for the weights.
    backward: float = 0.0  #: Seconds of B; 0 means those of I and W.
    recompute: float = 0.0  #: Seconds of R.
    gather: float = 0.0  #: Seconds of GATHER.
    reduce: float = 0.0  #: Seconds of REDUCE.
    kept_bytes: int = 0  #: Bytes of a micro-batch from F until I or B.
    held_bytes: int = 0  #: Bytes of a micro-batch from I until W.
    checkpoint_bytes: int = 0  #: Bytes of a micro-batch from F until R, where there is an R.
    parameter_bytes: int = 0  #: Bytes from GATHER until RELEASE.
    message_bytes: int = 0  #: Bytes of the output, and of the gradient that comes back.


class PipelineCosts(NamedTuple):
    """Costs of all stages and of messages."""

    stages: Sequence[StageCosts]  #: One for each stage.
    overhead: float = 0.0  #: Seconds of each action beyond its own.
    latency: float = 0.0  #: Seconds of each message.
    bytes_per_second: float = 0.0  #: Of a link from one rank to another; 0 is no limit.


class RankTimes(NamedTuple):
    """Times of one rank, in seconds."""

    first_start: float  #: When its first action begins.
    last_end: float  #: When its last action ends.
    work: float  #: Time in actions.
    peak_bytes: int  #: Its peak.
    sent_bytes: int  #: Bytes that it sends.


class StepReport(NamedTuple):
    """Times of a step, in seconds."""

    makespan: float  #: From the begin of the step to the end of its last action.
    span: float  #: The longest time from a rank's first action to its last one.
    work: float  #: Time in actions, of all ranks.
    idle: float  #: Ranks times makespan, less work.
    bubble: float  #: The part of idle.
    lower_bound: float  #: No schedule of these stages and costs has a shorter makespan.
    peak_bytes: int  #: The largest peak of a rank.
    sent_bytes: int  #: Bytes of all messages between ranks.
    ranks: tuple[RankTimes, ...]  #: The same by rank.


class PipelineCheck(NamedTuple):
    """Whether a schedule can run."""

    rule: str | None  #: The first rule that is broken, such as "order"; None if all hold.
    rank: int  #: The rank that breaks it.
    index: int  #: The place of the action in the rank's list; of a missing one, its length.
    action: PipelineAction  #: The action.
    peak_bytes: int  #: The largest peak of a rank, if all rules hold and costs were given.
    message: str | None  #: The library's words on a broken rule.


class CriticalStep(NamedTuple):
    """A step of the critical path."""

    rank: int  #: The rank.
    index: int  #: The place of the action in the rank's list.
    waited: bool  #: Whether it waited for the one before it in the path, on another rank.


class PipelineInfo(NamedTuple):
    """Sizes of a schedule."""

    ranks: int  #: Ranks.
    stages: int  #: Stages of all ranks.
    micro_batches: int  #: Micro-batches of a step.
    action_count: int  #: Actions of all ranks.
    order: str | None  #: The order; of "best", the one from which it began. None of a text.
    has_messages: bool  #: Whether the lists name SEND and RECV.
    value: float  #: "best": the objective that was reached. Else 0.
    bound: float  #: "best": no schedule of this placement comes below it. Else 0.
    evaluations: int  #: "best": schedules that were simulated. Else 0.


class NativeCosts:
    """Keeps what the native struct points to."""

    def __init__(self, costs: PipelineCosts) -> None:
        size = ctypes.sizeof(_native.trireme_pipeline_stage_costs)
        self._stages = (_native.trireme_pipeline_stage_costs * max(len(costs.stages), 1))()
        for native, stage in zip(self._stages, costs.stages):
            native.struct_size = size
            for field in StageCosts._fields:
                value = getattr(stage, field)
                setattr(native, field, in_range(value, 64, field) if "bytes" in field else value)
        self.native = _native.trireme_pipeline_costs(
            struct_size=ctypes.sizeof(_native.trireme_pipeline_costs),
            stages=self._stages,
            stage_count=len(costs.stages),
            overhead=costs.overhead,
            latency=costs.latency,
            bytes_per_second=costs.bytes_per_second,
        )


class _Limits:
    def __init__(self, buffers: int, limits: Sequence[int] | None) -> None:
        self._bytes = None if limits is None else (c_uint64 * max(len(limits), 1))(*limits)
        self.native = _native.trireme_pipeline_limits(
            struct_size=ctypes.sizeof(_native.trireme_pipeline_limits),
            buffers=in_range(buffers, 32, "buffers"),
            bytes=self._bytes,
            rank_count=0 if limits is None else len(limits),
        )


class PipelineSchedule:
    """The actions of each rank of a pipeline, in order. It never changes.

    Any thread may use it. Use it in a `with` block, or call close().
    """

    def __init__(
        self,
        order: str,
        ranks: int,
        micro_batches: int,
        *,
        stages_per_rank: int | None = None,
        placement: str | Sequence[int] | None = None,
        messages: bool = False,
        costs: PipelineCosts | None = None,
        limits: Sequence[int] | None = None,
        buffers: int = 0,
        objective: str = "makespan",
        seed: int = 0,
        evaluations: int = 0,
    ) -> None:
        """Makes the schedule of an order, such as "1f1b" or "zbv".

        "best" searches for the shortest one. It needs `costs`, and takes `limits`, `buffers`,
        `objective`, `seed` and `evaluations`. Its `placement` may be the rank of each stage.
        """
        options = _native.trireme_pipeline_schedule_options(
            struct_size=ctypes.sizeof(_native.trireme_pipeline_schedule_options),
            order=pipeline_order(order),
            flags=_native.TRIREME_PIPELINE_FLAG_MESSAGES if messages else 0,
            ranks=in_range(ranks, 32, "ranks"),
            micro_batches=in_range(micro_batches, 32, "micro_batches"),
            stages_per_rank=in_range(stages_per_rank or 0, 32, "stages_per_rank"),
            objective=number_of(objective, PIPELINE_OBJECTIVES, "objective"),
            seed=in_range(seed, 64, "seed"),
            evaluations=in_range(evaluations, 64, "evaluations"),
        )
        if isinstance(placement, str):
            options.placement = number_of(placement, PIPELINE_PLACEMENTS, "placement")
        elif placement is not None:
            rank_of = (c_uint32 * max(len(placement), 1))(*placement)
            options.placement = _native.TRIREME_PIPELINE_PLACEMENT_LIST
            options.stage_count = len(placement)
            options.rank_of = rank_of
        kept = None if costs is None else NativeCosts(costs)
        if kept is not None:
            options.costs = ctypes.pointer(kept.native)
        most = _Limits(buffers, limits) if limits is not None or buffers != 0 else None
        if most is not None:
            options.limits = ctypes.pointer(most.native)
        handle = c_void_p()
        check(library.trireme_pipeline_schedule_create(byref(options), byref(handle)))
        self._own(handle)

    def _own(self, handle: c_void_p) -> None:
        self._handle = handle.value
        self._close = weakref.finalize(
            self, library.trireme_pipeline_schedule_destroy, self._handle
        )

    @classmethod
    def parse(cls, text: str | bytes) -> PipelineSchedule:
        """Reads a text or CSV, such as PyTorch's. Does not check it: see check()."""
        data = text.encode() if isinstance(text, str) else bytes(text)
        handle = c_void_p()
        check(library.trireme_pipeline_schedule_parse(data, len(data), byref(handle)))
        schedule = cls.__new__(cls)
        schedule._own(handle)
        return schedule

    @classmethod
    def from_actions(
        cls,
        lists: Sequence[Iterable[PipelineAction]],
        micro_batches: int,
        placement: Sequence[int],
    ) -> PipelineSchedule:
        """Takes the actions of each rank, and the rank of each stage. Does not check them."""
        actions = [list(actions) for actions in lists]
        counts = (c_uint64 * max(len(actions), 1))(*(len(each) for each in actions))
        native = (_native.trireme_pipeline_action * max(sum(counts), 1))()
        flat = (action for each in actions for action in each)
        for target, action in zip(native, flat):
            target.kind = number_of(action.kind, PIPELINE_KINDS, "kind")
            target.stage = in_range(action.stage, 32, "stage")
            target.micro_batch = in_range(action.micro_batch, 32, "micro_batch")
            target.pair = in_range(action.pair, 32, "pair")
        rank_of = (c_uint32 * max(len(placement), 1))(*placement)
        handle = c_void_p()
        check(
            library.trireme_pipeline_schedule_from_actions(
                len(actions),
                in_range(micro_batches, 32, "micro_batches"),
                rank_of,
                len(placement),
                native,
                counts,
                byref(handle),
            )
        )
        schedule = cls.__new__(cls)
        schedule._own(handle)
        return schedule

    def close(self) -> None:
        """Destroys the schedule."""
        self._close()

    def __enter__(self) -> PipelineSchedule:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def info(self) -> PipelineInfo:
        """Sizes, and how a search ended."""
        native = _native.trireme_pipeline_schedule_info
        found = native(struct_size=ctypes.sizeof(native))
        check(library.trireme_pipeline_schedule_get_info(self._handle, byref(found)))
        values = {field: getattr(found, field) for field in PipelineInfo._fields}
        values["has_messages"] = found.has_messages != 0
        values["order"] = None if found.order == 0 else order_name(found.order)
        return PipelineInfo(**values)

    @property
    def placement(self) -> list[int]:
        """The rank of each stage."""
        rank_of = (c_uint32 * self.info.stages)()
        count = c_uint64()
        check(
            library.trireme_pipeline_schedule_placement(
                self._handle, rank_of, len(rank_of), byref(count)
            )
        )
        return list(rank_of)

    def actions(self, rank: int) -> list[PipelineAction]:
        """The actions of a rank, in order."""
        rank = in_range(rank, 32, "rank")
        count = c_uint64()
        call = library.trireme_pipeline_schedule_actions
        check(call(self._handle, rank, None, 0, byref(count)))
        found = (_native.trireme_pipeline_action * max(count.value, 1))()
        check(call(self._handle, rank, found, count.value, byref(count)))
        return [_action(each) for each in found[: count.value]]

    def check(
        self,
        costs: PipelineCosts | None = None,
        *,
        limits: Sequence[int] | None = None,
        buffers: int = 0,
    ) -> None:
        """Raises InvalidStateError if the schedule cannot run, or passes the limits in bytes."""
        self._check(costs, limits, buffers, None)

    def inspect(
        self,
        costs: PipelineCosts | None = None,
        *,
        limits: Sequence[int] | None = None,
        buffers: int = 0,
    ) -> PipelineCheck:
        """Looks whether the schedule can run, as check() does, and tells what is wrong if not."""
        native = _native.trireme_pipeline_check_report
        report = native(struct_size=ctypes.sizeof(native))
        message = None
        try:
            self._check(costs, limits, buffers, byref(report))
        except InvalidStateError as error:
            message = str(error)
        return PipelineCheck(
            _RULES.get(report.rule, str(report.rule)),
            report.rank,
            report.index,
            _action(report.action),
            report.peak_bytes,
            message,
        )

    def _check(
        self, costs: PipelineCosts | None, limits: Sequence[int] | None, buffers: int, report: Any
    ) -> None:
        kept = None if costs is None else NativeCosts(costs)
        most = _Limits(buffers, limits)
        check(
            library.trireme_pipeline_schedule_check(
                self._handle,
                None if kept is None else byref(kept.native),
                byref(most.native),
                report,
            )
        )

    def simulate(self, costs: PipelineCosts, *, buffers: int = 0) -> StepReport:
        """Times of a step."""
        kept, most = NativeCosts(costs), _Limits(buffers, None)
        native = _native.trireme_pipeline_step_report
        report = native(struct_size=ctypes.sizeof(native))
        ranks = (_native.trireme_pipeline_rank_times * self.info.ranks)()
        check(
            library.trireme_pipeline_schedule_simulate(
                self._handle,
                byref(kept.native),
                byref(most.native),
                byref(report),
                ranks,
                len(ranks),
            )
        )
        by_rank = tuple(
            RankTimes(*(getattr(each, field) for field in RankTimes._fields)) for each in ranks
        )
        return StepReport(
            *(getattr(report, field) for field in StepReport._fields[:-1]), ranks=by_rank
        )

    def times(
        self, rank: int, costs: PipelineCosts, *, buffers: int = 0
    ) -> list[tuple[float, float]]:
        """Begin and end of each action of a rank, in seconds."""
        kept, most = NativeCosts(costs), _Limits(buffers, None)
        rank = in_range(rank, 32, "rank")
        room = len(self.actions(rank))
        starts, ends = (c_double * max(room, 1))(), (c_double * max(room, 1))()
        count = c_uint64()
        check(
            library.trireme_pipeline_schedule_times(
                self._handle,
                byref(kept.native),
                byref(most.native),
                rank,
                starts,
                ends,
                room,
                byref(count),
            )
        )
        return list(zip(starts[:room], ends[:room]))

    def critical_path(self, costs: PipelineCosts, *, buffers: int = 0) -> list[CriticalStep]:
        """The actions that decide the makespan, from the first one to the last one."""
        kept, most = NativeCosts(costs), _Limits(buffers, None)
        count = c_uint64()
        steps: Any = None
        for _ in range(2):
            check(
                library.trireme_pipeline_schedule_critical_path(
                    self._handle,
                    byref(kept.native),
                    byref(most.native),
                    steps,
                    count.value,
                    byref(count),
                )
            )
            if steps is None:
                steps = (_native.trireme_pipeline_critical_step * max(count.value, 1))()
        return [
            CriticalStep(step.rank, step.index, step.waited != 0) for step in steps[: count.value]
        ]

    def write(self, form: str = "text", costs: PipelineCosts | None = None) -> str:
        """The schedule as "text", "csv", "drawing", "svg" or "trace"."""
        number = number_of(form, PIPELINE_FORMATS, "form")
        kept = None if costs is None else NativeCosts(costs)
        native = None if kept is None else byref(kept.native)
        length = c_uint64()
        call = library.trireme_pipeline_schedule_write
        check(call(self._handle, number, native, None, 0, byref(length)))
        text = ctypes.create_string_buffer(length.value + 1)
        check(call(self._handle, number, native, text, len(text), byref(length)))
        return text.raw[: length.value].decode()


def _action(native: _native.trireme_pipeline_action) -> PipelineAction:
    kind = _KIND_NAMES.get(native.kind, str(native.kind))
    return PipelineAction(kind, native.stage, native.micro_batch, native.pair)


def order_name(order: int) -> str:
    return library.trireme_pipeline_order_name(order).decode()


def pipeline_order(name: str) -> int:
    """The number of an order; knows synonyms, such as "Interleaved1F1B"."""
    order = c_int32()
    check(library.trireme_pipeline_order_parse(encoded(name), byref(order)))
    return order.value


class LayerCosts(NamedTuple):
    """Seconds and bytes of one layer."""

    seconds: float  #: Of F, I and W together.
    bytes: int = 0  #: Parameters, gradients and state.
    kept_bytes: int = 0  #: Of each micro-batch that a rank keeps.


class Partition(NamedTuple):
    """The first layer of each stage, and the number of layers."""

    cuts: list[int]  #: One more than stages.
    seconds: float  #: Of the slowest stage ("loop"), or the slowest rank ("v", "wave").


def native_layers(layers: Sequence[LayerCosts]) -> Any:
    """The same as an array of native structs."""
    size = ctypes.sizeof(_native.trireme_pipeline_layer_costs)
    native = (_native.trireme_pipeline_layer_costs * max(len(layers), 1))()
    for target, layer in zip(native, layers):
        target.struct_size = size
        target.seconds = layer.seconds
        target.bytes = in_range(layer.bytes, 64, "bytes")
        target.kept_bytes = in_range(layer.kept_bytes, 64, "kept_bytes")
    return native


def partition(
    layers: Sequence[LayerCosts],
    ranks: int,
    *,
    stages_per_rank: int = 1,
    placement: str = "loop",
    allow_empty: bool = False,
    limits: Sequence[int] | None = None,
    in_flight: Sequence[int] | None = None,
) -> Partition:
    """Cuts layers into stages so that the slowest is as fast as possible.

    `limits` are bytes by rank, and `in_flight` the micro-batches that each rank keeps at a time.
    """
    native = native_layers(layers)
    for name, values in (("limits", limits), ("in_flight", in_flight)):
        if values is not None and len(values) != ranks:
            raise InvalidArgumentError(
                f"{name} has {len(values)} values for {ranks} ranks",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
    options = _native.trireme_partition_options(
        struct_size=ctypes.sizeof(_native.trireme_partition_options),
        flags=_native.TRIREME_PARTITION_FLAG_ALLOW_EMPTY if allow_empty else 0,
        ranks=in_range(ranks, 32, "ranks"),
        stages_per_rank=in_range(stages_per_rank, 32, "stages_per_rank"),
        placement=number_of(placement, PIPELINE_PLACEMENTS, "placement"),
        limits=None if limits is None else (c_uint64 * max(ranks, 1))(*limits),
        in_flight=None if in_flight is None else (c_uint32 * max(ranks, 1))(*in_flight),
    )
    count = min(ranks * stages_per_rank, 1 << 18) + 1
    cuts = (c_uint64 * count)()
    seconds = c_double()
    check(
        library.trireme_partition(native, len(layers), byref(options), cuts, count, byref(seconds))
    )
    return Partition(list(cuts), seconds.value)
