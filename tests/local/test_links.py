"""Links between real processes: the mesh that a plan means, and ranks that disagree end in words, in bounded time."""

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from kuangchao_contracts.errors import KuangchaoError
from kuangchao_contracts.plan import Axis, AxisGroups, ParallelPlan, Sharding
from kuangchao_contracts.run import Empty
from kuangchao_worker.layers.topology.network import interface_of
from kuangchao_worker.layers.topology.service import TopologyService
from tests.local.gang import Gang, RankFailedError, Seat, built
from tests.unit.worker.fakegate import make_plan

CUBE = (
    AxisGroups(axis=Axis.TENSOR, size=2, stride=1),
    AxisGroups(axis=Axis.DATA, size=2, stride=2),
    AxisGroups(axis=Axis.PIPELINE, size=2, stride=4),
)


def sums(seat: Seat, mesh: DeviceMesh | None, plan: ParallelPlan) -> dict[str, tuple[int, int]]:
    """By axis: this rank's coordinate, and the sum of its group's ranks, reduced over the group itself."""
    found = {}
    for name in (mesh.mesh_dim_names or ()) if mesh is not None else ():
        assert mesh is not None
        total = torch.tensor(seat.rank)
        dist.all_reduce(total, group=mesh.get_group(name))
        found[name] = (mesh.get_local_rank(name), int(total))
    return found


def test_each_axis_joins_the_ranks_that_differ_on_it_alone(gang: Gang) -> None:
    plan = make_plan(8, batch=8, groups=CUBE, tensor=2, data=2, pipeline=2)
    found = gang.run(8, built, plan, sums)
    strides = {"tensor": 1, "data": 2, "pipeline": 4}
    for rank, axes in enumerate(found):
        assert list(axes) == ["pipeline", "data", "tensor"], "outermost first"
        for name, stride in strides.items():
            place = rank // stride % 2
            assert axes[name] == (place, 2 * rank + stride * (1 - 2 * place))


def test_data_that_shards_within_islands_is_two_axes(gang: Gang) -> None:
    plan = make_plan(4, sharding=Sharding.FULL, shard_ranks=2)
    found = gang.run(4, built, plan, sums)
    assert [axes["shard"] for axes in found] == [(0, 1), (1, 1), (0, 5), (1, 5)]
    assert [axes["replicate"] for axes in found] == [(0, 2), (0, 4), (1, 2), (1, 4)]


def test_a_data_axis_alone_is_the_world_itself(gang: Gang) -> None:
    assert gang.run(2, built, make_plan(2), is_world) == [True, True]
    assert gang.run(1, built, make_plan(1), sums) == [{}]


def sums_over_ipv6(seat: Seat) -> dict[str, tuple[int, int]]:
    """As `sums`, with the store at a bare IPv6 address."""
    plan = make_plan(2)
    topology = TopologyService(plan.hash, seat.attempt)
    topology.build(seat.capability, seat.request(plan).replace(master_host="::1"))
    try:
        return sums(seat, topology.mesh, plan)
    finally:
        topology.destroy(seat.capability, Empty())


@pytest.mark.skipif(interface_of("::1") is None, reason="this machine has no IPv6")
def test_links_are_built_over_ipv6(gang: Gang) -> None:
    """THUDM/slime#2151, pytorch/pytorch#52040."""
    assert gang.run(2, sums_over_ipv6) == [{"data": (0, 1)}, {"data": (1, 1)}]


def is_world(seat: Seat, mesh: DeviceMesh, plan: ParallelPlan) -> bool:
    return mesh.get_group("data") is dist.group.WORLD


def build_other(seat: Seat, what: str) -> str:
    """Rank 1 means to build something else than rank 0, or claims to be it; the error by class and message."""
    plan, attempt, placed = make_plan(2), seat.attempt, seat
    if seat.rank == 1:
        plan = make_plan(2, batch=64) if what == "plan" else plan
        attempt += what == "attempt"
        placed = seat._replace(rank=0) if what == "rank" else seat
    topology = TopologyService(plan.hash, attempt)
    try:
        topology.build(placed.capability, placed.request(plan, timeout=1).replace(attempt=attempt))
    except KuangchaoError as error:
        return f"{type(error).__name__}: {error}"
    return "built"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("plan", r"ConflictError: rank [01] is to build plan \w+ attempt \d+ .*, but the gang builds plan"),
        ("attempt", r"ConflictError: rank [01] is to build plan \w+ attempt \d+ .*, but the gang builds plan"),
        ("rank", r"ConflictError: rank 0 is there twice in this attempt"),
    ],
)
def test_ranks_that_disagree_are_told_before_they_connect(gang: Gang, what: str, words: str) -> None:
    told = gang.run(2, build_other, what)
    assert sum(re.match(words, text) is not None for text in told) == 1, told
    assert sum("1 of 2 ranks did not come within 1 s: 1" in text for text in told) >= (what == "rank"), told
    assert "built" not in told


def come_alone(seat: Seat) -> str:
    if seat.rank != 0:
        return ""
    plan = make_plan(3)
    with pytest.raises(Exception, match="did not come") as caught:
        TopologyService(plan.hash, seat.attempt).build(seat.capability, seat.request(plan, timeout=1))
    return f"{type(caught.value).__name__}: {caught.value}"


def test_missing_ranks_are_named_at_the_deadline(gang: Gang) -> None:
    assert gang.run(3, come_alone)[0] == "UnavailableError: 2 of 3 ranks did not come within 1 s: 1, 2"


def leave(seat: Seat, plan: ParallelPlan) -> Any:
    """Rank 1 drops its links without a word; rank 0 then breaks on it and destroys its own."""
    topology = TopologyService(plan.hash, seat.attempt)
    topology.build(seat.capability, seat.request(plan))
    if seat.rank == 1:
        dist.destroy_process_group()
        return None
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.zeros(1))
    return topology.destroy(seat.capability, Empty()).detail, dist.is_initialized()


def test_links_to_a_dead_peer_are_destroyed_without_it(gang: Gang) -> None:
    said, left = gang.run(2, leave, make_plan(2))[0]
    assert (said, left) == ("links destroyed", False) or said == "gave up waiting for a peer"


def test_a_case_that_fails_says_which_rank(gang: Gang) -> None:
    with pytest.raises(RankFailedError, match=r"rank 1: (?s:.*)ZeroDivisionError"):
        gang.run(2, divide)


def divide(seat: Seat) -> float:
    return 1 / (1 - seat.rank)
