"""Parts of a plan beside the sizes of its axes: schedule, objective, overlaid groups, placement, time. Pure data."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from kuangchao_contracts.base import MOST_COUNT, Contract, ShortText

Size = Annotated[int, Field(ge=1, le=MOST_COUNT)]
Micros = Annotated[int, Field(ge=0)]
Ppm = Annotated[int, Field(ge=0, le=1_000_000)]
Utilisation = Annotated[int, Field(ge=0)]
"""Parts per million of a device's peak."""


class Schedule(StrEnum):
    """Order of forward and backward passes over the stages of a pipeline."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE_H1 = "zb-h1"
    ZERO_BUBBLE_H2 = "zb-h2"
    ZERO_BUBBLE_V = "zb-v"


ZERO_BUBBLE: Final = frozenset({Schedule.ZERO_BUBBLE_H1, Schedule.ZERO_BUBBLE_H2, Schedule.ZERO_BUBBLE_V})
"""Schedules that go back through a stage twice: for what went in, and for its weights."""
IN_ROUNDS: Final = frozenset({Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE_H1})
"""Schedules that torch runs in rounds of equally many micro-batches."""


class Objective(StrEnum):
    """What the best plan is: least time for a step, fewest devices that fit, or most memory left on the fullest."""

    TIME = "time"
    DEVICES = "devices"
    MEMORY = "memory"


class Overlay(StrEnum):
    """Ways to group ranks that the mesh has already counted: experts and shards lie over data, context and tensor."""

    EXPERT = "expert"
    """Ranks among which the experts of a layer are divided."""
    EXPERT_TENSOR = "expertTensor"
    """Ranks that divide the matrices of one expert."""
    EXPERT_DATA = "expertData"
    """Ranks that hold the same experts: the data-parallel group of experts."""
    SHARD = "shard"
    """Ranks over which a state is sharded, where these are not all of data x context."""
    REPLICA = "replica"
    """Ranks that hold the same shard."""


class OverlayGroups(Contract):
    """The groups of one overlay as a rule: rank r has coordinate (r // stride) % size in its group."""

    axis: Overlay
    size: Size
    stride: Size


class Locality(StrEnum):
    """What ranks may have to share: an island of fast links inside a node, a node, or a rail of the network."""

    ISLAND = "island"
    NODE = "node"
    RAIL = "rail"


class PlacementRule(Contract):
    """Ranks that belong together, as a rule: those that differ only in (r // stride) % size share one `within`.

    `required` false: without it the plan runs as computed, but slower than its estimate says.
    """

    within: Locality
    size: Size
    stride: Size
    required: bool
    reason: ShortText


class StepEstimate(Contract):
    """Time of one step in microseconds, and its parts as far as nothing hides them: they sum to `step_us`.

    `mfu_ppm` counts the model's operations, `hfu_ppm` recomputed ones too. Both may be above 1,000,000: all of
    attention counts, and a kernel leaves its masked half out.
    """

    step_us: Micros
    compute_us: Micros
    tensor_us: Micros = 0
    context_us: Micros = 0
    expert_us: Micros = 0
    pipeline_us: Micros = 0
    data_us: Micros = 0
    optimizer_us: Micros = 0
    bubble_ppm: Ppm = 0
    mfu_ppm: Utilisation = 0
    hfu_ppm: Utilisation = 0
