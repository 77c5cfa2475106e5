"""Laws that hold for every history of a job: decisions are quiet, attempts only rise, devices are never held twice."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kuangchao_contracts.api.trainingjob import CheckpointPolicy, CheckpointStorage, FaultPolicy
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Phase
from kuangchao_contracts.run import RankState
from kuangchao_operator.layers.execution.decide import decide
from kuangchao_operator.layers.execution.model import Emit, Launch
from tests.unit.execution.world import World, holder, make_job, make_pool

ENDED = {Phase.COMPLETE, Phase.FAILED}
EVENTS: dict[str, Callable[[World], object]] = {
    "start": World.start_pods,
    "beat": lambda w: w.pods and _all_there(w) and w.beat(5),
    "starting": lambda w: w.pods and _all_there(w) and w.beat(0, RankState.STARTING),
    "crash": lambda w: w.pods and _all_there(w) and w.beat(6, exits={1: 1}, error="boom", error_kind="ValueError"),
    "out of memory": lambda w: (
        w.pods and _all_there(w) and w.beat(6, exits={1: 1}, error_kind="OutOfMemory", peak_memory_bytes=2**31)
    ),
    "peer loss": lambda w: (
        w.pods and _all_there(w) and w.beat(6, exits={0: 1}, error="Broken pipe", error_kind="PeerLost")
    ),
    "early": lambda w: w.pods and _all_there(w) and w.beat(6, exits={0: 0}),
    "done": lambda w: w.pods and _all_there(w) and w.beat(100, exits={0: 0, 1: 0}),
    "evict": lambda w: _change(w, disrupted=True),
    "drain": lambda w: _change(w, deleting=True, ends_by=w.now + timedelta(seconds=30)),
    "drained": lambda w: w.pods and _all_there(w) and w.beat(6, exits={1: 143}),
    "lose node": lambda w: _change(w, node_ready=False, node_lost_since=w.now - timedelta(minutes=1)),
    "vanish": lambda w: w.pods and w.pods.popitem(),
    "steal": lambda w: _change(w, owned=False),
    "suspend": lambda w: w.edit(suspend=True),
    "resume": lambda w: w.edit(suspend=False),
    "retry": lambda w: w.edit(retry_generation=w.job.spec.retry_generation + 1),
    "fill pool": lambda w: setattr(w, "pool", make_pool(claims=(holder("h", "a", 4), holder("i", "b", 4)))),
    "free pool": lambda w: setattr(w, "pool", make_pool()),
    "no pool": lambda w: setattr(w, "pool", None),
    "linger": lambda w: setattr(w, "linger", not w.linger),
    "bury": World.bury,
    "wait": lambda w: w.pass_time(7),
    "silence": lambda w: w.pass_time(20, beat=False),
    "long": lambda w: w.pass_time(700),
    "operator restart": lambda w: (w.facts.clear(), w.agents.clear(), setattr(w, "started", w.now)),
}


def _all_there(world: World) -> bool:
    return {p.index for p in world.pods.values() if p.incarnation == world.status.incarnation} == {0, 1}


def _change(world: World, **changes: object) -> None:
    for name in list(world.pods)[:1]:
        world.pods[name] = world.pods[name].replace(**changes)


def check(world: World) -> None:
    """What must hold whenever the shell has nothing left to do."""
    status = world.status
    again = decide(world.snapshot())
    assert again.status is None
    assert not again.actions
    assert {c.type for c in status.conditions} == {c.value for c in C}
    if status.phase in ENDED | {Phase.SUSPENDED, Phase.STALLED, Phase.QUEUED} and not world.pods:
        assert not status.allocation
    launched = [(a.attempt, a.incarnation) for a in world.actions(Launch)]
    assert launched == sorted(launched)
    live = [(p.incarnation, p.index) for p in world.pods.values() if p.owned and not p.deleting]
    assert len(live) == len(set(live))
    assert len({incarnation for incarnation, _ in live}) <= 1
    if status.phase is Phase.RUNNING:
        assert status.allocation
        assert world.holds(C.ADMITTED)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(sorted(EVENTS)), max_size=12), st.integers(0, 3))
def test_every_history_settles_and_then_keeps_quiet(history: list[str], budget: int) -> None:
    storage = CheckpointPolicy(storage=CheckpointStorage(claim_name="disk"))
    fault = FaultPolicy(max_restarts=budget)
    world = World(make_job(fault=fault, checkpoint=storage, start_deadline_seconds=600))
    world.settle()
    attempt, ended = 0, False
    for event in history:
        EVENTS[event](world)
        world.settle()
        check(world)
        assert world.status.attempt >= attempt
        assert not ended or world.status.phase in ENDED
        attempt, ended = world.status.attempt, world.status.phase in ENDED


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(sorted(EVENTS)), max_size=8))
def test_a_decision_is_stable_on_its_own_result(history: list[str]) -> None:
    """The very first answer holds: with unchanged facts its status is not changed again and no event comes twice."""
    world = World()
    for event in ["start", *history]:
        if world.job.status is not None:
            EVENTS[event](world)
        snapshot = world.snapshot()
        first = decide(snapshot)
        if first.status is not None:
            job = snapshot.job.model_copy(update={"status": first.status})
            second = decide(snapshot.model_copy(update={"job": job}))
            assert second.status is None
            assert not [a for a in second.actions if isinstance(a, Emit)]
        world.settle()


@pytest.mark.parametrize("stop", range(1, 6))
def test_operator_that_dies_at_any_turn_ends_in_the_same_place(stop: int) -> None:
    """Status was stored and the actions were lost: the next operator asks for them again."""
    world = World()
    for turn in range(8):
        decision = world.decide()
        if turn == stop:
            if decision.status is not None:
                world.job = world.job.model_copy(update={"status": decision.status})
            world.facts = {}
            continue
        world.turn()
    world.start_pods()
    world.settle()
    world.beat(1)
    world.settle()
    assert world.status.phase is Phase.RUNNING
    assert (world.status.attempt, world.status.incarnation, len(world.pods)) == (1, 0, 2)
