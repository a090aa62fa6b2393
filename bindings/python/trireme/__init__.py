"""Trireme: distributed training behind a stable C ABI, from Python.

>>> import trireme
>>> with trireme.Communicator(0, 1, "local://package-doctest") as group:
...     group.barrier()
"""

from ._abi import options as _options, rule_options as _rule_options
from ._abi import schedule_options as _schedule_options
from ._abi.options import *
from ._abi.rule_options import *
from ._abi.schedule_options import *
from ._buffer import Buffer
from ._callers import ActivationCall, Product
from ._communicator import Communicator, CommunicatorStatistics
from ._device import (
    DeviceInfo,
    MemoryInfo,
    device_count,
    device_info,
    device_memory,
    device_report,
    memory_info,
)
from ._device_memory import DeviceArray
from ._errors import (
    AbortedError,
    AuthenticationError,
    CallbackError,
    CancelledError,
    CorruptError,
    DeviceError,
    InternalError,
    InvalidArgumentError,
    InvalidHandleError,
    InvalidStateError,
    MismatchError,
    OutOfMemoryError,
    PeerLostError,
    SystemCallError,
    TimeoutError,
    TriremeError,
    UnsupportedError,
)
from ._fields import Rule
from ._hook import Bucket, BucketPart
from ._library import (
    algorithm_name,
    build_info,
    check_support,
    dtype_name,
    dtype_size,
    failpoint_hits,
    failpoint_names,
    optimizer_name,
    reduction_name,
    set_failpoints,
    set_log_listener,
    status_name,
    strategy_name,
    supports,
    version,
)
from ._attention import AttentionCore, ParallelAttention
from ._context import AttentionCall, Context, ContextInfo
from ._counters import OptimizerCounters
from ._experts import Experts, ExpertsInfo, Routing
from ._layers import (
    ColumnParallelLinear,
    LinearInfo,
    MlpInfo,
    ParallelMLP,
    ParallelMode,
    RowParallelLinear,
)
from ._lists import batch
from ._mesh import Mesh
from ._model import Model, ModelInfo, ModelMemory, ModelStatistics, Split, UnitInfo
from ._offload import OffloadInfo
from ._optimizer import LossScaleInfo, Optimizer, StateRange
from ._parallel import REST, Parallel, ParallelInfo, TensorOptions
from ._pipeline import (
    CriticalStep,
    LayerCosts,
    Partition,
    PipelineAction,
    PipelineCheck,
    PipelineCosts,
    PipelineInfo,
    PipelineSchedule,
    RankTimes,
    StageCosts,
    StepReport,
    partition,
)
from ._pipeline_model import PipelineConfig, PipelineParallelModel, PipelineStage
from ._random import random_dropout, random_uniform
from ._rebalance import RebalanceReport
from ._request import MessageInfo, Request, wait_all, wait_any
from ._schedule import Schedule, ScheduleOptions
from ._store import Store
from ._tensor import GemmInfo, Heads, Region, RegionInfo, Tensor
from ._trainer import Layer, LayerCall, Trainer, TrainerPipeline
from ._trainer_reports import MeasuredCosts, TrainerInfo, TrainerMetrics
from ._transport import Transport
from ._user_rule import Update
from ._vocabulary import ParallelCrossEntropy, VocabularyInfo, VocabularyParallelEmbedding

__all__ = [
    "AbortedError",
    "ActivationCall",
    "AttentionCall",
    "AuthenticationError",
    "Bucket",
    "BucketPart",
    "Buffer",
    "CallbackError",
    "CancelledError",
    "Communicator",
    "CommunicatorStatistics",
    "Context",
    "ContextInfo",
    "CorruptError",
    "CriticalStep",
    "Experts",
    "ExpertsInfo",
    "DeviceError",
    "DeviceArray",
    "DeviceInfo",
    "Heads",
    "InternalError",
    "InvalidArgumentError",
    "InvalidHandleError",
    "InvalidStateError",
    "LayerCosts",
    "LossScaleInfo",
    "Layer",
    "LayerCall",
    "MeasuredCosts",
    "MemoryInfo",
    "Mesh",
    "MessageInfo",
    "MismatchError",
    "Model",
    "ModelInfo",
    "ModelMemory",
    "ModelStatistics",
    "OffloadInfo",
    "Optimizer",
    "OptimizerCounters",
    "OutOfMemoryError",
    "ParallelCrossEntropy",
    "Partition",
    "Parallel",
    "ParallelInfo",
    "PeerLostError",
    "PipelineAction",
    "PipelineConfig",
    "PipelineCheck",
    "PipelineCosts",
    "PipelineInfo",
    "PipelineParallelModel",
    "PipelineSchedule",
    "PipelineStage",
    "Product",
    "REST",
    "RankTimes",
    "RebalanceReport",
    "Region",
    "RegionInfo",
    "Request",
    "Routing",
    "Rule",
    "Schedule",
    "ScheduleOptions",
    "Split",
    "StageCosts",
    "StateRange",
    "StepReport",
    "Store",
    "SystemCallError",
    "Tensor",
    "TensorOptions",
    "TimeoutError",
    "Trainer",
    "TrainerInfo",
    "TrainerMetrics",
    "TrainerPipeline",
    "Transport",
    "TriremeError",
    "UnitInfo",
    "UnsupportedError",
    "Update",
    "VocabularyInfo",
    "VocabularyParallelEmbedding",
    "algorithm_name",
    "build_info",
    "check_support",
    "device_count",
    "device_info",
    "device_memory",
    "device_report",
    "dtype_name",
    "dtype_size",
    "failpoint_hits",
    "failpoint_names",
    "batch",
    "memory_info",
    "optimizer_name",
    "partition",
    "random_dropout",
    "random_uniform",
    "reduction_name",
    "set_failpoints",
    "set_log_listener",
    "status_name",
    "strategy_name",
    "supports",
    "version",
    "wait_all",
    "wait_any",
    "ColumnParallelLinear",
    "AttentionCore",
    "LinearInfo",
    "MlpInfo",
    "ParallelAttention",
    "ParallelMLP",
    "ParallelMode",
    "RowParallelLinear",
    "GemmInfo",
]
# The classes of options: Clipping, Offload and so on; AdamW and the other rules; schedules.
__all__ += [*_options.__all__, *_rule_options.__all__, *_schedule_options.__all__]
__version__ = "1.0.0"
