"""Shape, memory and counts of a model."""

from __future__ import annotations

from typing import NamedTuple


class ModelInfo(NamedTuple):
    """The shape of a sealed model."""

    strategy: str  #: As created, for example "zero3".
    rank: int  #: This rank.
    world_size: int  #: Number of ranks.
    leaves: int  #: As created; 0 if not reproducible.
    micro_batches: int  #: Most leaves a rank has in a step; 0 if not reproducible.
    parameters: int  #: Parameters added, aliases included.
    units: int  #: Units.
    elements: int  #: Elements of the flat vectors.
    buckets: int  #: Buckets in which gradients are reduced.
    unit_groups: int  #: Unit groups, those of persistent units included.
    shared_bytes: int  #: Size of the one copy that ranks share; 0: each has its own memory.


class UnitInfo(NamedTuple):
    """The place of one unit on this rank."""

    dtype: str  #: Type of its elements.
    elements: int  #: Elements of the whole unit.
    shard_first: int  #: First element this rank owns.
    shard_count: int  #: Elements this rank owns.
    flat_first: int  #: Where the unit begins in the flat vectors.
    unit_group: int  #: Number of its unit group, from 0.


class ModelMemory(NamedTuple):
    """Bytes of this rank by kind: as the plan says, and as really allocated."""

    planned_parameters: int
    planned_gradients: int
    planned_optimizer_state: int
    planned_working: int
    allocated_parameters: int
    allocated_gradients: int
    allocated_optimizer_state: int
    allocated_working: int
    planned_step_bytes: int
    sent_step_bytes: int


class ModelStatistics(NamedTuple):
    """Counts of the model's calls on this rank since it was sealed."""

    steps: int  #: Optimizer steps, with those that join() followed.
    gathers: int  #: Unit groups that this rank gathered from their owners.
    prefetched: int  #: Those of `gathers` that began before the caller asked for them.
    reductions: int  #: Buckets that were reduced, once for each pass.
    peak_unit_groups: int  #: Most unit groups that were whole, or on their way, at one time.
    exposed_ns: int  #: Time in which calls waited: communication that compute did not hide.
    extra_buckets: int  #: How often a bucket took memory beyond the plan.
    moved_buckets: int  #: Buckets reduced at another place than in the first step.
    reshard_gathers: int  #: Those of `gathers` that came from `reshard_ranks` of Units only.
