"""Legal combinations of schedule, stages, chunks and micro-batches."""

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st

from kuangchao_contracts.parallel import Schedule
from kuangchao_operator.layers.strategy.schedule.orders import orders, placement
from kuangchao_operator.layers.strategy.schedule.passes import Orders, Placement

FIXED = {
    Schedule.ONE_F_ONE_B: 1,
    Schedule.ZERO_BUBBLE_H1: 1,
    Schedule.ZERO_BUBBLE_H2: 1,
    Schedule.ZERO_BUBBLE_V: 2,
}
"""Chunks of a stage where the schedule says how many."""

many = settings(max_examples=60, deadline=None)
"""How many examples, however slow the machine is."""


class Case(NamedTuple):
    """What `orders` takes."""

    schedule: Schedule
    pipeline: int
    virtual: int
    micro_batches: int

    @property
    def orders(self) -> Orders:
        """What each stage runs."""
        return orders(*self)

    @property
    def placement(self) -> Placement:
        """Where the pieces stand."""
        return placement(self.schedule, self.pipeline, self.virtual)


@st.composite
def cases(draw: st.DrawFn, stages: int = 8, most: int = 24) -> Case:
    """A legal case; interleaved also with groups that are not as large as the pipeline."""
    schedule = draw(st.sampled_from(Schedule))
    pipeline = draw(st.integers(1, stages))
    virtual = FIXED.get(schedule) or draw(st.integers(1, 4))
    count = draw(st.integers(pipeline if schedule is Schedule.INTERLEAVED else 1, most))
    return Case(schedule, pipeline, virtual, count)
