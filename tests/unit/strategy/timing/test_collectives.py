"""Times of collectives on links with round figures: bytes over the slowest link, and a latency for each hop."""

import pytest

from kuangchao_operator.layers.strategy.timing.collectives import all_reduce, all_to_all, scatter, send
from kuangchao_operator.layers.strategy.timing.machine import Reach

ALONE = Reach(1, 1, 1, 100e9, 10e9, 1e-6, 1e-5)
NEAR = Reach(8, 8, 1, 100e9, 10e9, 1e-6, 1e-5)
FAR = Reach(8, 1, 8, 100e9, 10e9, 1e-6, 1e-5)
BOTH = Reach(32, 8, 4, 100e9, 10e9, 1e-6, 1e-5)
GIB = 2.0**30


def test_nothing_is_sent_to_oneself() -> None:
    assert all_reduce(GIB, ALONE, 1e-5) == scatter(GIB, ALONE, 1e-5) == all_to_all(GIB, ALONE, 1e-5) == 0


def test_a_ring_moves_what_nccl_counts() -> None:
    """busbw = algbw x 2(n-1)/n for an all-reduce, (n-1)/n for a scatter (nccl-tests, PERFORMANCE.md)."""
    assert scatter(GIB, NEAR, 0.0) == pytest.approx(7 / 8 * GIB / 100e9 + 7e-6)
    assert all_reduce(GIB, NEAR, 0.0) == pytest.approx(2 * (7 / 8 * GIB / 100e9 + 7e-6))
    assert scatter(GIB, FAR, 0.0) == pytest.approx(7 / 8 * GIB / 10e9 + 7e-5)


def test_small_messages_go_by_a_tree() -> None:
    assert all_reduce(8.0, FAR, 0.0) == pytest.approx(2 * 3 * 1e-5, rel=1e-3)
    assert all_reduce(8.0, FAR, 0.0) < 2 * scatter(8.0, FAR, 0.0)


def test_members_of_a_node_share_their_far_links() -> None:
    """Eight adapters of 10 GB/s carry one ring at 80 GB/s; never faster than the island does."""
    assert scatter(GIB, BOTH, 0.0) == pytest.approx(31 / 32 * GIB / 80e9, rel=0.01)
    wide = BOTH._replace(far=90e9)
    assert scatter(GIB, wide, 0.0) == pytest.approx(31 / 32 * GIB / 100e9, rel=0.01)


def test_rings_by_level_save_latency() -> None:
    many = Reach(1024, 8, 128, 100e9, 10e9, 1e-6, 1e-4)
    flat = (1024 - 128) * 1e-6 + 127 * 1e-4
    assert scatter(1024.0, many._replace(near_latency=1e-5), 0.0) < (1024 - 128) * 1e-5 + 127 * 1e-4
    assert scatter(1024.0, many, 0.0) <= flat + 1e-6


def test_an_exchange_is_as_slow_as_the_slower_kind_of_link() -> None:
    assert all_to_all(GIB, NEAR, 0.0) == pytest.approx(7 / 8 * GIB / 100e9 + 7e-6)
    assert all_to_all(GIB, BOTH, 0.0) == pytest.approx(24 / 32 * GIB / 10e9 + 3e-5)
    once = all_to_all(GIB, BOTH, 0.0, far=GIB / 4)
    assert once == pytest.approx(24 / 32 * GIB / 4 / 10e9 + 3e-5)


def test_a_neighbour_in_the_island_is_nearer() -> None:
    assert send(GIB, NEAR, 0.0) == pytest.approx(GIB / 100e9 + 1e-6)
    assert send(GIB, FAR, 0.0) == pytest.approx(GIB / 10e9 + 1e-5)


@pytest.mark.parametrize("collective", [all_reduce, scatter, all_to_all, send])
@pytest.mark.parametrize("links", [NEAR, FAR, BOTH])
def test_more_bytes_never_take_less(collective, links: Reach) -> None:  # type: ignore[no-untyped-def]
    times = [collective(float(1 << n), links, 1e-5) for n in range(0, 36, 3)]
    assert times == sorted(times)
    assert times[0] >= 1e-5
