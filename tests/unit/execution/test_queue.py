"""Queue and placement: whole gangs or nothing, in order, never more than there is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts.api.resourcepool import Queueing, ResourcePoolSpec
from kuangchao_contracts.api.trainingjob import NodeShare, Priority
from kuangchao_contracts.descriptor import DeviceKind
from kuangchao_contracts.parallel import Locality, PlacementRule
from kuangchao_contracts.ranges import from_ranges
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Phase, Reason
from kuangchao_operator.layers.execution.facts import claim
from kuangchao_operator.layers.execution.facts import waiting as as_seen
from kuangchao_operator.layers.execution.model import Claim, NodeSlots, PoolFacts, Waiting
from kuangchao_operator.layers.execution.overlap import foreign_claims
from kuangchao_operator.layers.execution.placement import Gang, place
from kuangchao_operator.layers.execution.queue import admit
from tests.unit.execution import world as worlds
from tests.unit.execution.world import World, holder, make_job, make_plan, make_pool, waiting

FREE = st.dictionaries(st.sampled_from([f"n{i}" for i in range(8)]), st.integers(0, 9), max_size=8)
GANGS = st.builds(
    lambda runs, per_pod, together: Gang(runs * together, per_pod, together),
    st.integers(1, 24),
    st.integers(1, 4),
    st.integers(1, 3),
)


@given(FREE, GANGS, st.booleans(), st.frozensets(st.sampled_from([f"n{i}" for i in range(8)])))
def test_placement_is_all_or_nothing_and_fits(
    free: dict[str, int], gang: Gang, spread: bool, avoid: frozenset[str]
) -> None:
    shares = place(free, gang, spread=spread, avoid=avoid)
    possible = sum(count // (gang.per_pod * gang.together) for count in free.values()) * gang.together >= gang.pods
    assert (shares is not None) == possible
    if shares is None:
        return
    assert sum(s.devices for s in shares) == gang.devices
    assert all(s.devices <= free[s.node] and s.devices % gang.per_pod == 0 for s in shares)
    indices = [i for s in shares for i in from_ranges(s.pods)]
    assert indices == list(range(gang.pods))  # each index once, contiguous on each node
    assert len({s.node for s in shares}) == len(shares)
    node_of = {i: s.node for s in shares for i in from_ranges(s.pods)}
    assert all(node_of[i] == node_of[i // gang.together * gang.together] for i in indices)
    assert place(dict(reversed(free.items())), gang, spread=spread, avoid=avoid) == shares
    without = {n: c for n, c in free.items() if n not in avoid}
    if place(without, gang, spread=spread) is not None:
        assert not avoid & {s.node for s in shares}


def nodes_of(shares: tuple[NodeShare, ...] | None) -> dict[str, str]:
    assert shares is not None
    return {s.node: s.pods for s in shares}


def test_cpu_gangs_spread_and_gpu_gangs_pack() -> None:
    assert nodes_of(place({"a": 8, "b": 8}, Gang(2, 1), spread=True)) == {"a": "0", "b": "1"}
    assert nodes_of(place({"a": 8, "b": 8}, Gang(5, 1), spread=True)) == {"a": "0-2", "b": "3-4"}
    assert nodes_of(place({"a": 8, "b": 8}, Gang(2, 1), spread=False)) == {"a": "0-1"}
    # best fit: the small hole is filled, the whole node stays whole
    assert nodes_of(place({"a": 8, "b": 2}, Gang(2, 1), spread=False)) == {"b": "0-1"}
    assert nodes_of(place({"a": 8, "b": 8, "c": 3}, Gang(10, 1), spread=False)) == {"a": "0-7", "c": "8-9"}


def test_rank_order_follows_the_index_and_not_the_text_of_names() -> None:
    """pytorch/pytorch#137402."""
    shares = place({"a": 12}, Gang(12, 1), spread=True)
    assert nodes_of(shares) == {"a": "0-11"}


def test_pods_of_a_plan_that_must_stand_together_wait_for_a_node_that_takes_them() -> None:
    """Tensor groups of two pods: no group has one pod here and one there, though six devices are free."""
    assert nodes_of(place({"a": 3, "b": 3}, Gang(4, 1), spread=False)) == {"a": "0-2", "b": "3"}
    assert nodes_of(place({"a": 3, "b": 3}, Gang(4, 1, together=2), spread=False)) == {"a": "0-1", "b": "2-3"}
    assert place({"a": 3, "b": 3}, Gang(6, 1, together=2), spread=False) is None
    two = waiting("me", 4).replace(together=2)
    assert admit(make_pool({"a": 1, "b": 3}), two).reason is Reason.TOPOLOGY_PLACEMENT_FAILED
    assert "but not 2 at a time" in admit(make_pool({"a": 1, "b": 3}), two).message


def test_admission_places_by_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = PlacementRule(within=Locality.ISLAND, size=2, stride=1, required=True, reason="tensor")
    for placement, shares in (((), ["0-2", "3"]), ((rule,), ["0-1", "2-3"])):
        monkeypatch.setattr(worlds, "make_plan", lambda request, p=placement: make_plan(request).replace(placement=p))
        pool = make_pool({"a": 3, "b": 3}, spec=ResourcePoolSpec(device_type=DeviceKind.GPU))
        world = World(make_job(count=4), pool)
        world.run()
        assert world.job.status is not None
        assert [share.pods for share in world.job.status.allocation] == shares


def test_avoided_node_is_the_last_resort() -> None:
    assert nodes_of(place({"a": 1, "b": 1, "c": 1}, Gang(2, 1), spread=True, avoid=frozenset("a"))) == {
        "b": "0",
        "c": "1",
    }
    assert nodes_of(place({"a": 1, "b": 1}, Gang(2, 1), spread=True, avoid=frozenset("a"))) == {"a": "0", "b": "1"}


def test_two_gangs_for_the_same_devices_never_get_half_each() -> None:
    """volcano-sh/volcano#3373."""
    first, second = waiting("one", 3, age=1), waiting("two", 3)
    pool = make_pool({"a": 1, "b": 1, "c": 1}, waiting=(first, second))
    answer = admit(pool, first)
    assert sum(s.devices for s in answer.allocation) == 3
    refused = admit(pool, second)
    assert (refused.allocation, refused.reason, refused.position) == ((), Reason.WAITING_FOR_QUOTA, 2)
    assert "queued behind team/one" in refused.message
    after = make_pool(
        {"a": 1, "b": 1, "c": 1},
        waiting=(second,),
        claims=(Claim(namespace="team", job="one", priority=Priority.PRODUCTION, shares=answer.allocation),),
    )
    assert "needs 3 devices (3 pods of 1); 0 of 3 free" in admit(after, second).message
    assert "held by team/one (3)" in admit(after, second).message


def test_priority_goes_before_age_and_uid_breaks_ties() -> None:
    old_debug = waiting("debug", 1, age=100, priority=Priority.DEBUG)
    young, twin = waiting("x", 4), waiting("y", 4)
    pool = make_pool({"a": 5}, waiting=(old_debug, young, twin))
    assert admit(pool, young).allocation
    assert not admit(pool, twin).allocation
    assert admit(pool, old_debug).position == 3


@pytest.mark.parametrize(("queueing", "overtakes"), [(Queueing.BEST_EFFORT, True), (Queueing.STRICT, False)])
def test_a_big_job_at_the_head_is_overtaken_only_in_best_effort(queueing: Queueing, overtakes: bool) -> None:
    big, small = waiting("big", 4, age=10), waiting("small", 1)
    pool = make_pool(
        {"a": 4}, waiting=(big, small), claims=(holder("h", "a", 2),), spec=ResourcePoolSpec(queueing=queueing)
    )
    assert bool(admit(pool, small).allocation) is overtakes
    if not overtakes:
        assert "queued behind team/big" in admit(pool, small).message


def test_quota_and_debug_share_bound_what_is_given() -> None:
    pool = make_pool({"a": 10}, spec=ResourcePoolSpec(quota=8, debug_share_percent=20), claims=(holder("h", "a", 6),))
    assert not admit(pool, waiting("w", 3)).allocation
    assert "quota 8 with 6 reserved" in admit(pool, waiting("w", 3)).message
    assert admit(pool, waiting("w", 2)).allocation
    assert admit(pool, waiting("d", 1, priority=Priority.DEBUG)).allocation
    refused = admit(pool, waiting("d", 2, priority=Priority.DEBUG))
    assert "debug share 1 with 0 in use" in refused.message


def test_fragmentation_has_its_own_reason() -> None:
    pool = make_pool({"a": 2, "b": 2}, claims=(holder("h", "a", 1), holder("i", "b", 1)))
    answer = admit(pool, waiting("w", 2, per_pod=2))
    assert answer.reason is Reason.TOPOLOGY_PLACEMENT_FAILED
    assert "2 are free in pool pool, but not 2 at a time" in answer.message


def test_node_that_lost_devices_counts_zero_and_others_still_work() -> None:
    """volcano-sh/volcano#294."""
    pool = make_pool({"a": 7, "b": 4}, claims=(holder("h", "a", 8),))
    assert nodes_of(admit(pool, waiting("w", 3)).allocation) == {"b": "0-2"}


def test_far_positions_have_a_message_without_numbers_that_change() -> None:
    queue = tuple(waiting(f"j{i}", 4, age=100 - i) for i in range(30))
    full = make_pool({"a": 4}, waiting=queue, claims=(holder("h", "a", 4),))
    other = make_pool({"a": 4}, waiting=queue[1:], claims=(holder("i", "a", 3),))
    assert admit(full, queue[-1]).message == admit(other, queue[-1]).message


JOBS = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 2), st.sampled_from(Priority), st.integers(0, 5)), max_size=8
)


@given(
    JOBS,
    st.integers(0, 6),
    st.sampled_from(Queueing),
    st.sampled_from(DeviceKind),
    st.one_of(st.none(), st.integers(0, 12)),
)
def test_pool_is_never_given_out_twice(
    jobs: list[tuple[int, int, Priority, int]], node_size: int, queueing: Queueing, kind: DeviceKind, quota: int | None
) -> None:
    queue = tuple(
        waiting(f"j{i}", pods * per, per_pod=per, priority=p, age=age) for i, (pods, per, p, age) in enumerate(jobs)
    )
    spec = ResourcePoolSpec(queueing=queueing, device_type=kind, quota=quota)
    nodes = tuple(NodeSlots(node=n, devices=node_size) for n in "abc")
    claims: tuple[Claim, ...] = ()
    left = queue
    for job in queue:  # in order of creation, as events might come: any order must be safe
        answer = admit(PoolFacts(name="p", spec=spec, nodes=nodes, claims=claims, waiting=left), job)
        if answer.allocation:
            assert sum(s.devices for s in answer.allocation) == job.devices
            claims += (Claim(namespace="team", job=job.job, priority=job.priority, shares=answer.allocation),)
            left = tuple(w for w in left if w.uid != job.uid)
    used: dict[str, int] = {}
    for share in (s for c in claims for s in c.shares):
        used[share.node] = used.get(share.node, 0) + share.devices
    total = node_size * 3
    limit = total if quota is None else min(quota, total)
    assert all(count <= node_size for count in used.values())
    assert sum(used.values()) <= limit
    debug = sum(s.devices for c in claims if c.priority is Priority.DEBUG for s in c.shares)
    assert debug * 100 <= limit * spec.debug_share_percent


SHARED = ("a", "b")


@pytest.mark.parametrize(
    ("mine", "other", "devices", "taken"),
    [
        ({}, {}, 3, 3),
        ({"cpu_per_device": "2"}, {}, 3, 2),
        ({"cpu_per_device": "500m"}, {"cpu_per_device": "2"}, 3, 12),
        ({"memory_per_device": "1Gi"}, {"memory_per_device": "4Gi"}, 2, 8),
        ({"device_type": "gpu", "cpu_per_device": "4"}, {"device_type": "gpu"}, 3, 3),
        ({"device_type": "gpu"}, {}, 3, None),
    ],
)
def test_claims_of_another_pool_count_in_the_devices_of_this_one(
    mine: dict[str, Any], other: dict[str, Any], devices: int, taken: int | None
) -> None:
    there = holder("theirs", "b", devices)
    far = holder("far", "elsewhere", 9)
    specs = ResourcePoolSpec(**mine), ResourcePoolSpec(**other)
    found = list(foreign_claims(specs[0], SHARED, [(specs[1], there), (specs[1], far)]))
    assert [s.devices for c in found for s in c.shares] == ([] if taken is None else [taken])


def test_devices_that_jobs_of_another_pool_hold_are_not_given_out_again() -> None:
    pool = make_pool({"a": 4, "b": 4}, foreign=(holder("theirs", "b", 3),), spec=ResourcePoolSpec(quota=6))
    answer = admit(pool, waiting("me", 6))
    assert not answer.allocation
    assert "5 of 8 free" in answer.message
    assert "team/theirs (3)" in answer.message
    assert sum(s.devices for s in admit(pool, waiting("me", 5)).allocation) == 5


@given(JOBS)
def test_strict_order_is_never_broken(jobs: list[tuple[int, int, Priority, int]]) -> None:
    from kuangchao_operator.layers.execution.queue import order

    queue = tuple(
        waiting(f"j{i}", pods * per, per_pod=per, priority=p, age=age) for i, (pods, per, p, age) in enumerate(jobs)
    )
    pool = make_pool({"a": 6, "b": 6}, waiting=queue, spec=ResourcePoolSpec(queueing=Queueing.STRICT))
    got = [bool(admit(pool, w).allocation) for w in sorted(queue, key=order)]
    assert got == sorted(got, reverse=True)


def test_waiting_job_costs_itself_and_no_writes() -> None:
    """ray-project/kuberay#4416, kubernetes-sigs/jobset#535."""
    world = World(pool=make_pool({"a": 2}, claims=(holder("h", "a", 2),)))
    decision = world.settle()
    assert (world.status.phase, decision.wake_after_seconds) == (Phase.QUEUED, None)
    assert (world.pods, world.plan, world.status.attempt) == ({}, None, 0)
    assert world.holds(C.PLANNED)
    assert world.condition(C.ADMITTED).reason == Reason.NO_RESERVATION
    writes = world.writes
    for _ in range(20):
        world.pass_time(60)
        world.settle()
    assert world.writes == writes
    world.pool = make_pool({"a": 2})
    world.settle()
    assert len(world.pods) == 2


def test_what_the_pool_sees_of_a_job_by_stage() -> None:
    world = World(pool=make_pool({"a": 2}, claims=(holder("h", "a", 2),)))
    assert as_seen(world.job) is None
    world.settle()
    seen = as_seen(world.job)
    assert isinstance(seen, Waiting)
    assert (seen.devices, seen.job) == (2, "job")
    assert claim(world.job, ()) is None
    world.pool = make_pool({"a": 2})
    world.settle()
    assert as_seen(world.job) is None
    held = claim(world.job, world.pods.values())
    assert held is not None
    assert held.shares == world.status.allocation


def test_pods_that_outlive_the_reservation_still_count() -> None:
    """kubernetes-sigs/kueue#1503."""
    world = World().run()
    job = world.job.model_copy(update={"status": world.status.replace(allocation=())})
    held = claim(job, world.pods.values())
    assert held is not None
    assert {s.node: s.devices for s in held.shares} == {"a": 1, "b": 1}
    assert make_job().status is None
