"""Communicators: an order for all axes at once, and orders in which ranks would wait in a circle."""

import pytest

from kuangchao_contracts.parallel import Overlay, OverlayGroups
from kuangchao_contracts.plan import Axis, AxisGroups
from kuangchao_operator.layers.strategy.schedule.links import creation_order, groups_of, order
from kuangchao_operator.layers.strategy.schedule.waits import DeadlockError

MESH = (
    AxisGroups(axis=Axis.TENSOR, size=2, stride=1),
    AxisGroups(axis=Axis.DATA, size=3, stride=2),
    AxisGroups(axis=Axis.PIPELINE, size=2, stride=6),
)
EXPERTS = OverlayGroups(axis=Overlay.EXPERT, size=6, stride=1)


def test_axis_by_axis_every_rank_takes_part() -> None:
    made = creation_order((*MESH, EXPERTS), 12)
    place = {group: n for n, group in enumerate(made)}
    assert len(place) == len(made) == 6 + 4 + 6 + 2
    for rank in range(12):
        mine = groups_of(rank, (*MESH, EXPERTS))
        assert all(rank in group.ranks for group in mine)
        assert [place[group] for group in mine] == sorted(place[group] for group in mine)


def test_two_orders_wait_in_a_circle() -> None:
    programs = {rank: groups_of(rank, MESH[:2]) for rank in range(6)}
    programs[1] = programs[1][::-1]
    programs[4] = programs[4][::-1]
    with pytest.raises(DeadlockError) as found:
        order(programs)
    assert len(found.value.cycle) >= 2
    assert any(line.startswith("rank 1 joins the data group of ranks 1 to 5 by 2 before") for line in found.value.cycle)


def test_a_member_that_never_comes() -> None:
    programs = {rank: groups_of(rank, MESH[:1]) for rank in range(2)}
    programs[1] = ()
    with pytest.raises(DeadlockError, match="rank 0 joins the tensor group of ranks 0 to 1 by 1, which rank 1 never"):
        order(programs)


def test_a_world_that_the_axes_do_not_fill() -> None:
    with pytest.raises(DeadlockError, match="never"):
        creation_order(MESH[:2], 5)
