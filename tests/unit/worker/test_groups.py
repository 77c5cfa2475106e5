"""Groups of ranks: which there are, in which order they are built, and for which plan and attempt."""

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.claims import Claims
from kuangchao_contracts.plan import Axis, AxisGroups
from kuangchao_contracts.ports.topology import BuildRequest
from kuangchao_worker.layers.topology.decide import GroupSpec, TopologyCycleError, build_order, groups_of
from kuangchao_worker.layers.topology.service import TopologyService
from kuangchao_worker.rank.wiring import require_data_parallel
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


def test_plan_that_this_worker_cannot_carry_out_is_refused() -> None:
    with pytest.raises(e.InvalidInputError, match=r"plan\.tensor=2"):
        require_data_parallel(make_plan(2, tensor=2))
