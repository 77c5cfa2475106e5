"""What a step looks like: which stage does what from when to when, and how much of it is idle. Pure; microseconds."""

from enum import StrEnum
from typing import NamedTuple

PPM = 1_000_000


class Activity(StrEnum):
    """What a stage or a link does."""

    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHT = "weight gradients"
    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"
    REDUCTION = "gradient reduction"
    OPTIMIZER = "optimizer"


class Lane(StrEnum):
    """Where it happens: a stage computes, sends on, sends back and reduces at the same time."""

    COMPUTE = "compute"
    SEND_ON = "send on"
    SEND_BACK = "send back"
    REDUCE = "reduce"


PASSES = frozenset({Activity.FORWARD, Activity.BACKWARD, Activity.WEIGHT})


class Span(NamedTuple):
    """One thing that one stage does. `micro_batch` is -1 for what is done once a step."""

    stage: int
    lane: Lane
    activity: Activity
    micro_batch: int
    chunk: int
    start: int
    stop: int


class Timeline(NamedTuple):
    """One step. Spans in order of start, then stage."""

    stages: int
    spans: tuple[Span, ...]
    busy: tuple[int, ...]
    """By stage: time in passes."""
    first: tuple[int, ...]
    """By stage: start of its first pass."""
    last: tuple[int, ...]
    """By stage: end of its last pass."""
    stop: int
    """End of the step, with reduction and optimizer."""

    @property
    def makespan(self) -> int:
        """From the first pass of all to the last."""
        return max(self.last) - min(self.first)

    @property
    def longest(self) -> int:
        """The longest that a stage takes from its first pass to its last."""
        return max(last - first for first, last in zip(self.first, self.last, strict=True))

    @property
    def bubble_ppm(self) -> int:
        """Share of the makespan in which the busiest stage is idle: x / (1 + x) where bubble / ideal time is x."""
        return share_ppm(self.makespan - max(self.busy), self.makespan)

    @property
    def steady_bubble_ppm(self) -> int:
        """The same where no stage waits for the others between steps, as zero-bubble schedules want it (Qi 2023)."""
        return share_ppm(self.longest - max(self.busy), self.longest)

    @property
    def idle_ppm(self) -> int:
        """Share of all stages' time that is idle: bubbles, and stages that have less to do than the busiest one."""
        whole = self.makespan * self.stages
        return share_ppm(whole - sum(self.busy), whole)


def share_ppm(part: int, whole: int) -> int:
    """Parts per million, rounded down."""
    return part * PPM // whole if whole else 0
