"""Groups of ranks: which there are, in which order they are built, and for which plan and attempt."""

from typing import Any

import pytest
from torch._C._distributed_c10d import DebugLevel, get_debug_level, set_debug_level

from kuangchao_contracts import errors as e
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.claims import Claims
from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import Axis, AxisGroups, Recompute, Sharding
from kuangchao_contracts.ports.topology import BuildRequest
from kuangchao_worker.layers.topology.decide import GroupSpec, TopologyCycleError, build_order, digest, groups_of
from kuangchao_worker.layers.topology.service import TopologyService
from kuangchao_worker.rank.runnable import require_debuggable, require_runnable, whole
from kuangchao_worker.rank.wiring import stream
from kuangchao_worker.tasks import NO_RULES
from kuangchao_worker.tasks.text import RULES
from tests.unit.worker.fakegate import make_plan


def test_groups_cover_the_world_and_come_after_what_they_need() -> None:
    axes = (
        AxisGroups(axis=Axis.DATA, size=2, stride=4),
        AxisGroups(axis=Axis.TENSOR, size=2, stride=1),
        AxisGroups(axis=Axis.PIPELINE, size=2, stride=2),
    )
    plan = make_plan(8, batch=8, groups=axes)
    order = build_order(reversed(groups_of(plan)))
    assert [spec.name for spec in order] == ["world", "tensor", "pipeline", "data"]
    for spec in order:
        assert sorted(rank for ranks in spec.members for rank in ranks) == list(range(8))
    assert order[1].members == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert order[3].members == ((0, 4), (1, 5), (2, 6), (3, 7))
    for spec in order[1:]:
        axis = Axis(spec.name)
        for ranks in spec.members:
            assert [plan.coordinate(rank, axis) for rank in ranks] == list(range(len(ranks)))


def test_cycle_is_an_error_that_names_it() -> None:
    specs = [GroupSpec("a", ((0,),), ("b",)), GroupSpec("b", ((0,),), ("c",)), GroupSpec("c", ((0,),), ("a",))]
    with pytest.raises(TopologyCycleError, match=r"[abc] -> [abc] -> [abc] -> [abc]"):
        build_order(specs)
    with pytest.raises(TopologyCycleError, match="'x'"):
        build_order([GroupSpec("a", ((0,),), ("x",))])


def test_links_are_built_only_for_the_assigned_plan_and_attempt() -> None:
    plan = make_plan(1)
    service = TopologyService(plan.hash, 2)
    own = Capability.model_construct(claims=Claims.model_construct(ranks="0"))
    common = {"rank": 0, "master_host": "127.0.0.1", "master_port": 1, "store_prefix": "p", "timeout_seconds": 1}
    for request in (BuildRequest(plan=plan, attempt=1, **common), BuildRequest(plan=make_plan(2), attempt=2, **common)):
        with pytest.raises(e.ConflictError):
            service.build(own, request)


@pytest.mark.parametrize(
    ("field", "plan"),
    [
        ("accumulationSteps=1", {"pipeline": 2}),
        ("virtualStages=1", {"pipeline": 2, "accumulation": 2, "schedule": Schedule.INTERLEAVED}),
        ("context=2", {"context": 2}),
        ("tensor=2: the task has no rules", {"tensor": 2}),
        ("sequence=True", {"sequence": True}),
    ],
)
def test_plan_that_this_worker_cannot_carry_out_is_refused(field: str, plan: dict[str, Any]) -> None:
    with pytest.raises(e.InvalidInputError, match=f"plan.{field}"):
        require_runnable(make_plan(2, **plan), NO_RULES)


def test_plans_that_it_can_carry_out_are_not() -> None:
    for plan in (
        {},
        {"recompute": Recompute.FULL},
        *({"sharding": kind} for kind in Sharding),
        {"tensor": 2, "sequence": True},
        {"pipeline": 2, "accumulation": 2},
    ):
        require_runnable(make_plan(2, **plan), RULES)


def test_checks_of_collectives_with_which_ddp_crashes_are_refused() -> None:
    """torch's Logger of DDP takes the wrapper that checks collectives over gloo for what it wraps."""
    before = get_debug_level()
    set_debug_level(DebugLevel.DETAIL)
    try:
        with pytest.raises(e.InvalidInputError, match=r"TORCH_DISTRIBUTED_DEBUG='DETAIL'.*legal value: INFO"):
            require_debuggable(make_plan(2), gloo=True)
        require_debuggable(make_plan(2), gloo=False)
        require_debuggable(make_plan(1), gloo=True)
        require_debuggable(make_plan(2, sharding=Sharding.FULL), gloo=True)
        set_debug_level(DebugLevel.INFO)
        require_debuggable(make_plan(2), gloo=True)
    finally:
        set_debug_level(before)


@pytest.mark.parametrize("axes", [((Axis.DATA, 2, 2),), ((Axis.DATA, 2, 1), (Axis.TENSOR, 2, 1)), ((Axis.DATA, 2, 1),)])
def test_axes_that_are_not_the_world_are_refused(axes: tuple[tuple[Axis, int, int], ...]) -> None:
    groups = tuple(AxisGroups(axis=axis, size=size, stride=stride) for axis, size, stride in axes)
    with pytest.raises(e.InvalidInputError, match="plan"):
        groups_of(make_plan(4, groups=groups))


def test_data_that_shards_over_a_part_of_its_ranks_is_cut_in_two() -> None:
    names = {spec.name: spec.members for spec in groups_of(make_plan(4, sharding=Sharding.FULL, shard_ranks=2))}
    assert names["shard"] == ((0, 1), (2, 3))
    assert names["replicate"] == ((0, 2), (1, 3))
    with pytest.raises(e.InvalidInputError, match=r"plan\.shardRanks=3"):
        groups_of(make_plan(4, sharding=Sharding.FULL, shard_ranks=3))


def test_order_of_a_large_plan_is_the_same_each_time() -> None:
    axes = ((Axis.TENSOR, 8, 1), (Axis.DATA, 64, 8), (Axis.PIPELINE, 32, 512))
    groups = tuple(AxisGroups(axis=axis, size=size, stride=stride) for axis, size, stride in axes)
    plan = make_plan(16_384, batch=16_384, groups=groups, tensor=8, data=64, pipeline=32)
    orders = [build_order(groups_of(plan)) for _ in range(2)]
    assert digest(orders[0]) == digest(orders[1]) != digest(orders[0][::-1])
    assert [len(spec.members) for spec in orders[0]] == [1, 2048, 256, 512]


def test_ranks_of_a_tensor_group_draw_the_same_numbers() -> None:
    groups = tuple(AxisGroups(axis=a, size=2, stride=s) for a, s in ((Axis.TENSOR, 1), (Axis.DATA, 2)))
    plan = make_plan(4, groups=groups, tensor=2, data=2)
    assert [stream(plan, rank) for rank in range(4)] == [0, 0, 2, 2]
    assert [stream(make_plan(3, batch=33), rank) for rank in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({}, True),
        ({"sharding": Sharding.FULL}, False),
        ({"sharding": Sharding.FULL, "shard_ranks": 1}, True),
        ({"tensor": 2, "data": 1}, False),
        ({"pipeline": 2, "data": 1}, False),
    ],
)
def test_a_model_is_whole_on_each_rank_unless_something_splits_it(sizes: dict[str, Any], expected: bool) -> None:
    assert whole(make_plan(2, **sizes)) is expected
    assert whole(make_plan(1, sharding=Sharding.FULL))
    assert [spec.name for spec in groups_of(make_plan(2, **sizes))] == ["world", "data"]
