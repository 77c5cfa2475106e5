"""Micro-batches in flight, against the published schedules."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts.parallel import Schedule
from kuangchao_operator.layers.strategy.footprint.schedules import group_size, in_flight


@pytest.mark.parametrize(
    ("schedule", "virtual", "expected"),
    [
        (Schedule.GPIPE, 1, [(16,)] * 4),
        (Schedule.ONE_F_ONE_B, 1, [(4,), (3,), (2,), (1,)]),
        (Schedule.INTERLEAVED, 2, [(7, 4), (5, 4), (4, 3), (4, 1)]),
        (Schedule.ZERO_BUBBLE_H1, 1, [(4,)] * 4),
        (Schedule.ZERO_BUBBLE_H2, 1, [(7,)] * 4),
        (Schedule.ZERO_BUBBLE_V, 2, [(7, 1), (6, 2), (5, 3), (4, 4)]),
    ],
)
def test_four_stages_and_sixteen_micro_batches(
    schedule: Schedule, virtual: int, expected: list[tuple[int, ...]]
) -> None:
    assert [in_flight(schedule, stage, 4, virtual, 16) for stage in range(4)] == expected


@given(pipeline=st.integers(2, 16), virtual=st.integers(2, 8))
def test_interleaving_costs_the_first_stage_what_megatron_says(pipeline: int, virtual: int) -> None:
    """p (1 + (p-1)/(p v)) micro-batches of the whole stage."""
    held = sum(in_flight(Schedule.INTERLEAVED, 0, pipeline, virtual, 4 * pipeline))
    assert Fraction(held, virtual) == pipeline * (1 + Fraction(pipeline - 1, pipeline * virtual))


@given(
    schedule=st.sampled_from(Schedule), pipeline=st.integers(1, 8), count=st.integers(1, 40), stage=st.integers(0, 7)
)
def test_never_more_than_there_are(schedule: Schedule, pipeline: int, count: int, stage: int) -> None:
    virtual = 2 if schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE_V) else 1
    held = in_flight(schedule, min(stage, pipeline - 1), pipeline, virtual, count)
    assert len(held) == virtual
    assert all(1 <= chunk <= count or chunk == 0 for chunk in held)
    assert held[0] >= 1


@pytest.mark.parametrize(("pipeline", "count", "size"), [(4, 16, 4), (4, 5, 5), (4, 10, 5), (4, 7, 7), (4, 3, 4)])
def test_no_group_is_smaller_than_the_pipeline(pipeline: int, count: int, size: int) -> None:
    assert group_size(pipeline, count) == size
