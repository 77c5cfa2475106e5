"""Sizes for people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts.units import human_bytes, hundredths, least_bytes, most_bytes, to_bytes


def read(text: str) -> int:
    """As a quantity, which is rounded up."""
    return to_bytes(text.replace(" ", "").removesuffix("B"))


@pytest.mark.parametrize(
    ("count", "most", "nearest", "least"),
    [
        (0, "0 B", "0 B", "0 B"),
        (1536, "1.5 KiB", "1.5 KiB", "1.5 KiB"),
        (92_932_153_999, "86.5 GiB", "86.5 GiB", "86.6 GiB"),
        (92_770_000_000, "86.3 GiB", "86.4 GiB", "86.4 GiB"),
    ],
)
def test_what_is_enough_is_rounded_up_and_what_is_there_down(count: int, most: str, nearest: str, least: str) -> None:
    assert (most_bytes(count), human_bytes(count), least_bytes(count)) == (most, nearest, least)


@given(count=st.integers(0, 2**55))
def test_no_figure_is_on_the_unsafe_side(count: int) -> None:
    assert read(most_bytes(count)) <= count
    assert read(least_bytes(count)) >= count


@pytest.mark.parametrize(("count", "words"), [(7, "7 B"), (1536, "1.50 KiB"), (218_870_000_000, "203.84 GiB")])
def test_two_decimals_where_one_would_contradict_a_sum(count: int, words: str) -> None:
    assert hundredths(count) == words
