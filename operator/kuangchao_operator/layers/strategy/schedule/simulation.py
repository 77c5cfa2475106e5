"""One step of a plan, run: the timeline that is drawn, and what it says of the whole step. Pure.

Large steps are run with fewer micro-batches. The rest is added at the pace of the second half of those: exact where
stages are equally fast, within some percent where they are not and a step settles late.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from kuangchao_contracts.parallel import Schedule
from kuangchao_operator.layers.strategy.footprint.schedules import group_size
from kuangchao_operator.layers.strategy.schedule.orders import orders, placement
from kuangchao_operator.layers.strategy.schedule.run import ChunkTime, Tail, Times, run
from kuangchao_operator.layers.strategy.schedule.sample import fewer
from kuangchao_operator.layers.strategy.schedule.timeline import Timeline, share_ppm
from kuangchao_operator.layers.strategy.schedule.transport import Transport

LIMIT = 30_000
"""Passes that are run."""
EQUAL = ChunkTime(forward=1000, backward=1000, weight=1000)
"""Where no time is known: the backward pass takes twice the forward pass's."""


class Simulation(NamedTuple):
    """`timeline` shows `simulated` of `micro_batches`; the figures are those of all of them, in microseconds."""

    schedule: Schedule
    timeline: Timeline
    virtual: int
    micro_batches: int
    simulated: int
    makespan_us: int
    """From the first pass to the last one."""
    step_us: int
    """With reduction and optimizer."""
    bubble_ppm: int
    """Share of the makespan in which the busiest stage is idle."""
    steady_bubble_ppm: int
    """The same where no stage waits for the others between steps."""
    timed: bool = True
    """False: no time is known, every chunk is taken as equal, and the unit is a thousandth of a forward pass."""

    def busy_ppm(self, stage: int) -> int:
        """Share of the makespan that a stage spends in passes."""
        return share_ppm(self.timeline.busy[stage] * self.micro_batches // self.simulated, self.makespan_us)


def simulate(
    schedule: Schedule,
    pipeline: int,
    virtual: int,
    micro_batches: int,
    times: Times | None = None,
    *,
    tails: Sequence[Tail] = (),
    transport: Transport = Transport.EAGER,
    limit: int = LIMIT,
) -> Simulation:
    """A step under a schedule. `times`: by stage and chunk, None where none is known.

    Raises InvalidInputError where the schedule has no order for these numbers, DeadlockError where it would hang.
    """
    known = times if times is not None else [[EQUAL] * virtual] * pipeline
    place = placement(schedule, pipeline, virtual)

    def line(count: int) -> Timeline:
        rows = orders(schedule, pipeline, virtual, count)
        return run(rows, place, known, tails=tails, transport=transport)

    few = fewer(schedule, pipeline, virtual, micro_batches, limit)
    shown = line(few)
    more = 0
    if few < micro_batches:
        group = group_size(pipeline, micro_batches) if schedule is Schedule.INTERLEAVED else 1
        half = max(group, few // 2 // group * group)
        more = (micro_batches - few) * (shown.makespan - line(few - half).makespan) // half
    return Simulation(
        schedule=schedule,
        timeline=shown,
        virtual=virtual,
        micro_batches=micro_batches,
        simulated=few,
        makespan_us=shown.makespan + more,
        step_us=shown.stop + more,
        bubble_ppm=_bubble(shown, shown.makespan + more, few, micro_batches),
        steady_bubble_ppm=_bubble(shown, shown.longest + more, few, micro_batches),
        timed=times is not None,
    )


@lru_cache(maxsize=4096)
def even_bubble_ppm(schedule: Schedule, pipeline: int, virtual: int, micro_batches: int) -> int:
    """The bubble where all chunks take equal time. Raises as `simulate` does."""
    return simulate(schedule, pipeline, virtual, micro_batches, limit=0).bubble_ppm


def _bubble(shown: Timeline, whole: int, few: int, micro_batches: int) -> int:
    return max(0, share_ppm(whole - max(shown.busy) * micro_batches // few, whole))
