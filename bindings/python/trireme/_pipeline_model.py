"""A model whose layers lie on the ranks of a pipeline: Parallel, Model and Trainer put together."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, NamedTuple, Sequence

from . import _native
from ._communicator import Communicator
from ._errors import InvalidArgumentError
from ._fields import instance, instances
from ._model import Model
from ._optimizer import Optimizer
from ._parallel import REST, Parallel, TensorOptions
from ._pipeline import LayerCosts, PipelineCosts, pipeline_order
from ._trainer import Layer, Trainer, TrainerPipeline
from ._values import Name

# Orders that need two stages on each rank.
_PAIRED = frozenset(
    (
        _native.TRIREME_PIPELINE_ORDER_INTERLEAVED,
        _native.TRIREME_PIPELINE_ORDER_ZB_V,
        _native.TRIREME_PIPELINE_ORDER_V_HALF,
        _native.TRIREME_PIPELINE_ORDER_V_MIN,
        _native.TRIREME_PIPELINE_ORDER_DUALPIPE_V,
    )
)


@dataclasses.dataclass(frozen=True)
class PipelineConfig:
    """How ranks form a pipeline, and how its micro-batches go through it.

    `schedule` is the name of an order, such as "1f1b", "zb-h1" or "Interleaved1F1B". "best"
    searches one for the costs of stages. With `ranks` of 1 the model is one stage without a
    schedule. Then `schedule` is only checked for its name, and `stages_per_rank`, `stage_costs`,
    `activation_limit_bytes` and `require_split` mean nothing.
    """

    ranks: int  #: Ranks along the pipeline.
    micro_batches: int  #: Of each reader in a step.
    schedule: str = "1f1b"
    stages_per_rank: int = 0  #: 0: as few as the schedule takes.
    layer_costs: Sequence[LayerCosts] | None = None  #: They decide the cuts. None: equal ones.
    stage_costs: PipelineCosts | None = None  #: Needed by "best".
    activation_limit_bytes: int = 0  #: Of each rank, with `stage_costs`. 0: any.
    require_split: bool = False  #: Refuse layers without `backward_weight` if the schedule has W.

    def _stages_per_rank(self, order: int) -> int:
        if self.stages_per_rank > 0:
            return self.stages_per_rank
        return 2 if order in _PAIRED else 1


class PipelineStage(NamedTuple):
    """Neighbouring layers that one rank has."""

    number: int  #: Among the stages of all ranks.
    rank: int  #: Its rank along the pipeline.
    layers: range  #: Numbers of its layers in the whole model.
    is_first: bool  #: Its first layer reads the batch.
    is_last: bool  #: Its last layer computes the loss.


class PipelineParallelModel:
    """A whole model as a list of layers. Each rank has the layers of its stages.

    `layers` are all layers, in the order of forward. `parameters` tells of each parameter that they
    name the arguments of Model.add_parameter() beside the name. All ranks give the same. Ranks that
    the pipeline and the other axes leave lie along "data". Use it in a `with` block, or call
    close().

    A parameter with `tied_to` may lie in another stage than its target. A rank without the target
    holds a copy by its name, and all copies are trained alike.

    >>> def forward(call):
    ...     call.output[0] = call.leaf * call.parameters[0][0]
    >>> def backward(call):
    ...     call.gradients[0][0] = call.leaf * call.output_gradient[0]
    >>> def loss(call):
    ...     call.loss = call.input[0]
    >>> def loss_backward(call):
    ...     call.input_gradient[0] = call.loss_scale
    >>> layers = [
    ...     Layer("scale", forward, backward, parameters=["w"], output=1),
    ...     Layer("loss", loss, loss_backward),
    ... ]
    >>> with Communicator(0, 1, "local://pipeline-model-doctest") as group:
    ...     config = PipelineConfig(ranks=1, micro_batches=4)
    ...     with PipelineParallelModel(group, config, layers, {"w": {"shape": 1}}) as model:
    ...         with Optimizer(model.model, "sgd", learning_rate=1.0) as optimizer:
    ...             with model.trainer(optimizer) as trainer:
    ...                 trainer.step().loss, trainer.step().loss
    (0.0, -2.25)
    """

    def __init__(
        self,
        communicator: Communicator,
        config: PipelineConfig,
        layers: Sequence[Layer],
        parameters: Mapping[str, Mapping[str, Any]],
        strategy: Name = "data_parallel",
        *,
        shard: int = 1,
        tensor: int = 1,
        tensor_options: TensorOptions | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        """`options` are those of Model, such as `leaves`."""
        instance(PipelineConfig, config, "config")
        all_layers = instances(Layer, layers, "layers")
        costs = [LayerCosts(1.0)] * len(all_layers)
        if config.layer_costs is not None:
            costs = list(config.layer_costs)
        if len(costs) != len(all_layers):
            raise InvalidArgumentError(
                f"layer_costs has {len(costs)} entries for {len(all_layers)} layers",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        # 0 and REST mean something to Parallel, and not here.
        if config.ranks < 1:
            raise InvalidArgumentError(
                f"ranks is {config.ranks}; a pipeline has 1 or more",
                _native.TRIREME_ERROR_INVALID_ARGUMENT,
            )
        seen: list[Any] = []
        for layer in all_layers:
            for name in layer.parameters:
                if name in seen:
                    raise InvalidArgumentError(
                        f"parameter {name!r} belongs to two layers: give the second one another "
                        "name, and tied_to",
                        _native.TRIREME_ERROR_INVALID_ARGUMENT,
                    )
                target = parameters.get(name, {}).get("tied_to")
                if target is not None and target not in seen:
                    raise InvalidArgumentError(
                        f"tied_to {target!r} of parameter {name!r} names no earlier parameter, "
                        "in the order of layers",
                        _native.TRIREME_ERROR_INVALID_ARGUMENT,
                    )
                seen.append(name)
        order = pipeline_order(config.schedule)
        staged: dict[str, Any] = {}
        if config.ranks > 1:
            staged = {
                "micro_batches": config.micro_batches,
                "schedule": config.schedule,
                "stages_per_rank": config._stages_per_rank(order),
                "costs": config.stage_costs,
                "activation_limit_bytes": config.activation_limit_bytes,
            }
        self._config = config
        self._leaves = options.get("leaves", 0)
        self.parallel = Parallel(
            communicator,
            data=REST,
            shard=shard,
            tensor=tensor,
            pipeline=config.ranks,
            tensor_options=tensor_options,
            timeout=timeout,
            **staged,
        )
        try:
            #: The first layer of each stage, and the number of layers.
            self.cuts = self.parallel.partition(costs).cuts
            #: The layers of this rank, stage by stage.
            self.layers = [all_layers[number] for stage in self.stages for number in stage.layers]
            #: The model of this rank's parameters, which is sealed.
            self.model = Model(self.parallel, strategy, timeout=timeout, **options)
            self._add_parameters(parameters)
            self.model.seal()
        except BaseException:
            self.close()
            raise

    def _add_parameters(self, parameters: Mapping[str, Mapping[str, Any]]) -> None:
        def root_of(name: str) -> str:
            seen = {name}
            while (other := parameters[name].get("tied_to")) in parameters and other not in seen:
                seen.add(other)
                name = other
            return name

        shared = {root_of(name) for name in parameters if parameters[name].get("tied_to")}
        held = set()
        for layer in self.layers:
            for name in layer.parameters:
                if not isinstance(name, str) or name not in parameters:
                    raise InvalidArgumentError(
                        f"layer {layer.name!r} names parameter {name!r}, which is not described",
                        _native.TRIREME_ERROR_INVALID_ARGUMENT,
                    )
                root = root_of(name)
                options = dict(parameters[name])
                if root in held:
                    options["tied_to"] = root
                    if options.get("placement"):  # that of the target has this one, too
                        options["placement"] = {**options["placement"], "pipeline": "tied"}
                    self.model.add_parameter(name, **options)
                elif root in shared and self._config.ranks > 1:
                    options = dict(parameters[root])
                    placement = {**(options.get("placement") or {}), "pipeline": "tied"}
                    options["placement"] = placement
                    number = self.model.add_parameter(root, **options)
                    self.model._name_also(name, number)
                    held.add(root)
                else:
                    self.model.add_parameter(name, **options)

    @property
    def stages(self) -> tuple[PipelineStage, ...]:
        """The stages of this rank, in the order of the model."""
        rank = self.parallel.info.coordinates["pipeline"]
        return tuple(stage for stage in self.all_stages if stage.rank == rank)

    @property
    def all_stages(self) -> tuple[PipelineStage, ...]:
        """The stages of all ranks, in the order of the model."""
        last = len(self.cuts) - 2
        ranks = {
            stage: rank
            for rank in range(self._config.ranks)
            for stage in self.parallel.stages(rank)
        }
        return tuple(
            PipelineStage(
                stage,
                ranks[stage],
                range(self.cuts[stage], self.cuts[stage + 1]),
                stage == 0,
                stage == last,
            )
            for stage in range(last + 1)
        )

    @property
    def bubble(self) -> float:
        """The part of a step of equal stages, or of those of the costs, in which ranks wait."""
        return self.parallel.info.bubble

    def trainer(self, optimizer: Optimizer, **options: Any) -> Trainer:
        """A trainer of this rank's layers. `options` are those of Trainer. Collective.

        Without a pipeline, the micro-batches are those of the configuration if `options` names none
        and the model has no leaves.
        """
        if self._config.ranks == 1:
            if not self._leaves:
                options.setdefault("micro_batches", self._config.micro_batches)
            return Trainer(optimizer, self.layers, **options)
        with self.parallel.schedule() as schedule:
            pipeline = TrainerPipeline(
                self.parallel.communicator("pipeline"),
                schedule,
                self.cuts,
                require_split=self._config.require_split,
            )
            return Trainer(optimizer, self.layers, pipeline=pipeline, **options)

    def close(self) -> None:
        """Ends the model and leaves the communicators of the axes."""
        model = getattr(self, "model", None)
        if model is not None:
            model.close()
        self.parallel.close()

    def __enter__(self) -> PipelineParallelModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
