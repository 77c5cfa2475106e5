"""Times, shares and values as text."""

import pytest

from kuangchao_contracts.plan import Sharding
from kuangchao_operator.layers.strategy.shown import as_written, change, duration, percent, permille


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "0 us"),
        (999, "999 us"),
        (1_000, "1.00 ms"),
        (3_104, "3.10 ms"),
        (12_340, "12.3 ms"),
        (240_000, "240 ms"),
        (1_000_000, "1.00 s"),
        (4_561_000, "4.56 s"),
        (12_360_000, "12.4 s"),
    ],
)
def test_times_have_three_digits(micros: int, text: str) -> None:
    assert duration(micros) == text


def test_shares_are_rounded_to_the_nearest_tenth() -> None:
    shares = ["0.0 %", "0.0 %", "0.1 %", "13.5 %", "100.0 %"]
    assert [percent(ppm) for ppm in (0, 499, 500, 134_999, 1_000_000)] == shares
    assert (permille(1, 3), permille(1, 0)) == ("33.3 %", "0.0 %")


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [(1000, 999, "-0.1 %"), (1000, 1001, "+0.1 %"), (12, 9, "-25.0 %"), (4, 5, "+25.0 %"), (0, 5, "+0.0 %")],
)
def test_a_change_is_as_large_downwards_as_upwards(before: int, after: int, text: str) -> None:
    assert change(before, after) == text


def test_values_are_as_a_user_writes_them() -> None:
    given = (True, Sharding.FULL, 4, "1f1b", [2, 2])
    assert [as_written(one) for one in given] == ["true", "full", "4", "1f1b", "[2, 2]"]
