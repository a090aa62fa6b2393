"""Results, memory and costs of a trainer."""

from __future__ import annotations

from typing import NamedTuple

from . import _native


class TrainerMetrics(NamedTuple):
    """Results of a step."""

    stop: bool  #: A rank has asked to stop; the same on all ranks.
    skipped: bool  #: With `loss_scale`: a gradient was inf or NaN, and nothing was updated.
    step: int  #: Optimizer.step_count after the step.
    micro_batches: int  #: Over all ranks.
    sent_bytes: int  #: As sent_step_bytes of ModelMemory.
    loss: float  #: Mean over all micro-batches; the same on all ranks.
    gradient_norm: float  #: As Optimizer.gradient_norm; -1 without clipping by norm or if skipped.
    learning_rate: float  #: Learning rate of the step.
    loss_scale: float  #: Loss scale of the optimizer in the step.
    seconds: float  #: Seconds that the step took on this rank.
    exposed_seconds: float  #: Seconds of the step in which the rank waited for communication.

    @classmethod
    def of(cls, raw: _native.trireme_trainer_metrics) -> TrainerMetrics:
        rest = (getattr(raw, field) for field in cls._fields[2:])
        return cls(bool(raw.stop), bool(raw.skipped), *rest)


class TrainerInfo(NamedTuple):
    """Layers and memory of a trainer on this rank; trainer.h describes each number."""

    micro_batches: int  #: Most micro-batches that a rank has in a step.
    layers: int  #: Number of layers.
    stretches: int  #: Stretches into which the layers are cut; 1: the trainer keeps everything.
    recomputed: int  #: Layers whose forward runs twice in a micro-batch.
    planned_checkpoint_bytes: int
    planned_stretch_bytes: int
    planned_gradient_bytes: int
    planned_parameter_gradient_bytes: int
    planned_exchange_bytes: int
    allocated_bytes: int
    largest_bytes: int  #: Activations and gradients of outputs, if the trainer keeps everything.
    least_bytes: int  #: The least `activation_budget_bytes` that works.
    planned_window_bytes: int  #: With `offload`: the window, and items that could not be written.
    stages: int  #: With a pipeline: stages of this rank. Else 0.
    split_layers: int  #: Layers with `backward_weight`.

    @classmethod
    def of(cls, raw: _native.trireme_trainer_info) -> TrainerInfo:
        return cls(*(getattr(raw, field) for field in cls._fields))


class MeasuredCosts(NamedTuple):
    """Times and bytes of a pipeline's layer for a micro-batch, the same on all ranks."""

    forward_seconds: float
    input_seconds: float  #: `backward`, with the parameters where there is no `backward_weight`.
    weight_seconds: float  #: `backward_weight`.
    parameter_bytes: int
    kept_bytes: int  #: Output and saved.
    output_bytes: int

    @classmethod
    def of(cls, raw: _native.trireme_measured_costs) -> MeasuredCosts:
        return cls(*(getattr(raw, field) for field in cls._fields))

    @property
    def seconds(self) -> float:
        """Of all passes, as LayerCosts has them."""
        return self.forward_seconds + self.input_seconds + self.weight_seconds
