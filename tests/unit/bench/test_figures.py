"""The arithmetic of the benchmarks: percentiles, ratios of neighbouring runs, verdicts."""

import pytest
from bench.figures import (
    Bound,
    Figure,
    Pair,
    Side,
    cost_microseconds,
    cpu_cost_microseconds,
    per_minute,
    percentile,
    ratio,
    spread,
    text,
)


@pytest.mark.parametrize(
    ("count", "percent", "expected"), [(20, 95, 19), (20, 50, 10), (1, 95, 1), (100, 95, 95), (21, 95, 20), (5, 100, 5)]
)
def test_a_percentile_is_the_value_of_nearest_rank_whatever_the_order(
    count: int, percent: float, expected: int
) -> None:
    assert percentile(range(count, 0, -1), percent) == expected


@pytest.mark.parametrize(("values", "percent"), [([], 95), ([1.0], 0), ([1.0], 101)])
def test_a_percentile_of_nothing_is_refused(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, percent)


def pair(ours: float, theirs: float) -> Pair:
    return Pair(Side(ours, 3e-3), Side(theirs, 2e-3))


def test_the_ratio_compares_neighbours_so_a_slow_machine_does_not_count() -> None:
    """All of ours together would be slower than all of theirs only because two of the pairs met a slow machine."""
    pairs = [pair(98, 100), pair(49, 50), pair(9.8, 10)]
    assert ratio(pairs) == pytest.approx(0.98)


def test_one_disturbed_pair_does_not_move_the_median() -> None:
    assert ratio([pair(98, 100), pair(10, 100), pair(98, 100)]) == pytest.approx(0.98)
    assert spread([pair(98, 100), pair(10, 100)]) == "2 pairs, 0.100 to 0.980"


def test_the_cost_of_a_step_is_the_difference_of_step_times() -> None:
    assert cost_microseconds([pair(1000, 2000)]) == pytest.approx(500)
    assert cost_microseconds([pair(2000, 1000)]) == pytest.approx(-500)
    assert cpu_cost_microseconds([pair(1, 1)]) == pytest.approx(1000)


def test_a_rate_per_minute() -> None:
    assert per_minute(3, 10) == 18


@pytest.mark.parametrize(
    ("value", "bound", "target", "met"),
    [
        (150, Bound.AT_MOST, 150, True),
        (150.1, Bound.AT_MOST, 150, False),
        (0.97, Bound.AT_LEAST, 0.97, True),
        (0.969, Bound.AT_LEAST, 0.97, False),
        (float("nan"), Bound.AT_MOST, 150, False),
        (float("nan"), Bound.AT_LEAST, 1, False),
        (1.0, Bound.AT_MOST, None, None),
    ],
)
def test_the_verdict_is_what_came_out(value: float, bound: Bound, target: float | None, met: bool | None) -> None:
    assert Figure("g", "n", value, "s", bound, target).met is met


def test_a_figure_without_target_says_so_in_table_and_file() -> None:
    assert Figure("g", "n", 1.0).wanted == ""
    assert Figure("g", "n", 1.0, "s", target=2.0).wanted == "<= 2 s"
    assert Figure("g", "n", 1.0, "s", target=2.0).record()["met"] is True
    assert [text(value) for value in (0, 30.0, 0.12345, 92.23)] == ["0", "30", "0.1235", "92.23"]
