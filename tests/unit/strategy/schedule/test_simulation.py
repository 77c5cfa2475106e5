"""What is said of a step that is too large to be run whole, and how long looking at it may take."""

import pytest

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.parallel import Schedule
from kuangchao_operator.layers.strategy.schedule.run import ChunkTime, Tail
from kuangchao_operator.layers.strategy.schedule.sample import fewer, spread
from kuangchao_operator.layers.strategy.schedule.simulation import Simulation, even_bubble_ppm, simulate

from .cases import FIXED, Case


def whole(step: Simulation) -> tuple[int, int, int, int]:
    """The figures that must not depend on how much is run."""
    return step.makespan_us, step.step_us, step.bubble_ppm, step.steady_bubble_ppm


@pytest.mark.parametrize("schedule", Schedule)
def test_the_figures_are_those_of_the_whole_step(schedule: Schedule) -> None:
    virtual = FIXED.get(schedule) or 2
    times = [[ChunkTime(90, 80, 60, 5)] * virtual] * 4
    few, full = (
        simulate(schedule, 4, virtual, 96, times, tails=[Tail(50, 20)] * 4, limit=limit) for limit in (0, 1_000_000)
    )
    assert few.simulated == 16
    assert full.simulated == 96
    assert whole(few) == whole(full)
    assert [few.busy_ppm(stage) for stage in range(4)] == [full.busy_ppm(stage) for stage in range(4)]


@pytest.mark.parametrize("schedule", Schedule)
def test_figures_of_unequal_stages_are_close(schedule: Schedule) -> None:
    virtual = FIXED.get(schedule) or 2
    times = [[ChunkTime(90 + 7 * stage, 80, 60, 5)] * virtual for stage in range(4)]
    few, full = (simulate(schedule, 4, virtual, 96, times, limit=limit) for limit in (0, 1_000_000))
    assert few.makespan_us == pytest.approx(full.makespan_us, rel=0.01)


@pytest.mark.parametrize(
    ("case", "passes", "expected"),
    [
        (Case(Schedule.ONE_F_ONE_B, 4, 1, 8), 10_000, 8),
        (Case(Schedule.ONE_F_ONE_B, 4, 1, 4096), 800, 100),
        (Case(Schedule.ONE_F_ONE_B, 1, 1, 4096), 30_000, 512),
        (Case(Schedule.ONE_F_ONE_B, 100, 1, 4096), 800, 400),
        (Case(Schedule.INTERLEAVED, 8, 2, 4096), 1000, 32),
        (Case(Schedule.INTERLEAVED, 4, 2, 4095), 500, 30),
        (Case(Schedule.INTERLEAVED, 4, 2, 11), 1, 11),
    ],
)
def test_fewer_micro_batches_keep_the_groups(case: Case, passes: int, expected: int) -> None:
    assert fewer(*case, passes) == expected
    assert case._replace(micro_batches=expected).orders


def test_stages_are_spread_with_both_ends() -> None:
    assert spread(5, 8) == (0, 1, 2, 3, 4)
    assert spread(128, 4) == (0, 42, 84, 127)
    assert spread(9, 1) == (0,)


@pytest.mark.parametrize(
    ("pipeline", "micro_batches"), [(2, 9), (2, 15), (2, 65_535), (4, 10), (4, 30), (5, 77), (8, 63)]
)
def test_groups_larger_than_the_pipeline_have_the_bubble_of_any(pipeline: int, micro_batches: int) -> None:
    """(p - 1) / (m v) of the passes, whatever the groups are; from some groups to all of them."""
    found = even_bubble_ppm(Schedule.INTERLEAVED, pipeline, 2, micro_batches)
    assert found == (pipeline - 1) * 1_000_000 // (micro_batches * 2 + pipeline - 1)


def test_without_times_the_bubble_is_that_of_equal_passes() -> None:
    assert even_bubble_ppm(Schedule.ONE_F_ONE_B, 4, 1, 8) == 3_000_000 // 11
    assert even_bubble_ppm(Schedule.ONE_F_ONE_B, 1, 1, 8) == 0
    assert even_bubble_ppm(Schedule.ONE_F_ONE_B, 16, 1, 65_536) == 15 * 1_000_000 // (65_536 + 15)
    assert not simulate(Schedule.ONE_F_ONE_B, 4, 1, 8).timed
    with pytest.raises(InvalidInputError):
        even_bubble_ppm(Schedule.INTERLEAVED, 4, 2, 3)
