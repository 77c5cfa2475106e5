"""The fewest devices of those tried: all of them for small jobs, a bounded number for large ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kuangchao_operator.layers.strategy.fewest import BETWEEN, MOST_TRIED, fewest


def tried(devices: int, per_pod: int, *, least: int, share: int = 1) -> tuple[int, list[int]]:
    """What is found where `least` devices do, in multiples of `share`; and all that was asked."""
    asked = list[int]()

    def fits(count: int) -> bool:
        asked.append(count)
        return count >= least and count % share == 0

    return fewest(devices, per_pod, fits), asked


@given(pods=st.integers(1, MOST_TRIED + 1), per_pod=st.integers(1, 8), least=st.integers(1, 600))
def test_of_few_pods_none_is_left_out(pods: int, per_pod: int, least: int) -> None:
    found, asked = tried(pods * per_pod, per_pod, least=least)
    assert found == min(pods * per_pod, -(-least // per_pod) * per_pod)
    assert asked == list(range(per_pod, pods * per_pod, per_pod))[: len(asked)]


@pytest.mark.parametrize(
    ("devices", "per_pod", "least", "share", "found"),
    [
        (16_384, 8, 8, 1, 8),
        (16_384, 8, 1_000, 1, 1_008),
        (16_384, 8, 16_384, 1, 16_384),
        (1_048_576, 1, 3, 1, 3),
        (5_040, 1, 100, 7, 105),
        (5_040, 8, 5_000, 1, 5_024),
    ],
)
def test_of_many_pods_a_few_are_tried(devices: int, per_pod: int, least: int, share: int, found: int) -> None:
    assert tried(devices, per_pod, least=least, share=share)[0] == found


@given(pods=st.integers(MOST_TRIED + 2, 16_384), per_pod=st.sampled_from([1, 2, 8]), least=st.integers(1, 1_048_576))
def test_the_number_of_tries_has_a_bound_and_what_is_found_fits(pods: int, per_pod: int, least: int) -> None:
    devices = pods * per_pod
    found, asked = tried(devices, per_pod, least=least)
    assert found % per_pod == 0
    assert found == devices or found >= least
    parts = sum(count % per_pod == 0 for count in range(1, devices + 1) if devices % count == 0)
    assert len(asked) <= parts + devices.bit_length() + BETWEEN
    assert len(asked) == len(set(asked))
