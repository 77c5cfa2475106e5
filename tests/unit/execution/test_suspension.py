"""Suspend and resume, restart limit and new budgets."""

import pytest

from kuangchao_contracts.api.trainingjob import Devices, FaultPolicy, RestartLimitAction
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Phase, Reason
from kuangchao_operator.layers.execution.model import Emit, Launch, Reclaim
from tests.unit.execution.world import World, make_job


def test_job_created_suspended_has_no_children_and_resumes_by_the_present_spec() -> None:
    """kubeflow/mpi-operator#670."""
    world = World(make_job(suspend=True))
    world.settle()
    assert world.status.phase is Phase.SUSPENDED
    assert (world.log, world.pods, world.status.attempt, world.status.plan_hash) == (
        [a for a in world.log if isinstance(a, Emit)],
        {},
        0,
        None,
    )
    world.edit(devices=Devices(count=3))
    world.settle()
    assert not world.pods
    world.edit(suspend=False)
    world.settle()
    assert sorted(p.index for p in world.pods.values()) == [0, 1, 2]
    assert world.plan is not None
    assert world.plan.world_size == 3
    assert (world.status.attempt, world.status.incarnation) == (1, 0)


def test_suspending_a_running_job_closes_its_attempt_and_frees_it() -> None:
    """kubeflow/trainer#2159."""
    world = World(make_job(ttl_seconds_after_finished=60)).run()
    world.edit(suspend=True)
    world.settle()
    assert (world.status.phase, world.status.attempt) == (Phase.SUSPENDED, 2)
    assert (world.pods, world.claim()) == ({}, None)
    assert world.status.completion_time is None
    assert (world.status.plan_hash, world.status.plan_name) == (None, None), "it is planned anew when it is resumed"
    assert not world.holds(C.RECONCILING)
    assert not world.holds(C.STALLED)
    assert len(world.actions(Reclaim)) == 1
    writes = world.writes
    for _ in range(5):
        world.pass_time(300)
        assert world.settle().wake_after_seconds is None
    assert (world.writes, world.deleted) == (writes, False)


def test_all_places_say_running_after_a_resume() -> None:
    """kubeflow/sdk#803."""
    world = World().run(step=30)
    world.edit(suspend=True)
    world.settle()
    world.edit(suspend=False)
    world.settle()
    assert world.status.phase is Phase.STARTING
    assert (world.status.attempt, world.status.incarnation) == (2, 1)
    world.start_pods()
    world.beat(31)
    world.settle()
    assert world.status.phase is Phase.RUNNING
    assert (world.condition(C.READY).status, world.condition(C.SUSPENDED).status) == ("True", "False")
    assert world.reason(C.SUSPENDED) == Reason.RESUMED


def test_suspension_waits_for_pods_and_so_does_the_resume() -> None:
    world = World().run()
    world.linger = True
    world.edit(suspend=True)
    world.settle()
    assert world.condition(C.RECONCILING).message == "waiting for 2 terminating pods"
    assert world.claim() is not None
    world.edit(suspend=False)
    world.settle()
    assert (world.status.phase, len(world.actions(Launch))) == (Phase.SUSPENDING, 1)
    world.bury()
    world.settle()
    assert (world.status.phase, len(world.actions(Launch))) == (Phase.STARTING, 2)


@pytest.mark.parametrize("limit", [0, 2])
def test_restart_limit_means_exactly_so_many_more_starts(limit: int) -> None:
    """kubeflow/trainer#1589."""
    world = World(make_job(fault=FaultPolicy(max_restarts=limit, on_restart_limit=RestartLimitAction.FAIL))).run()
    for step in range(limit + 1):
        assert world.status.phase is Phase.RUNNING
        world.beat(step, exits={0: 1})
        world.settle()
        if step < limit:
            world.beat(step)
            world.settle()
    assert (world.status.phase, world.reason(C.FAILED)) == (Phase.FAILED, Reason.RESTART_LIMIT_EXCEEDED)
    assert len(world.actions(Launch)) == limit + 1
    assert world.claim() is None


def test_restart_limit_suspends_frees_and_waits_for_a_new_budget() -> None:
    world = World(make_job(fault=FaultPolicy(max_restarts=0))).run(step=7)
    world.beat(7, exits={1: 3})
    world.settle()
    assert (world.status.phase, world.reason(C.SUSPENDED)) == (Phase.SUSPENDED, Reason.RESTART_LIMIT_EXCEEDED)
    assert not world.job.spec.suspend
    assert (world.claim(), world.pods) == (None, {})
    assert "maxRestarts=0 used up; rank 1 on b at step 7" in world.condition(C.READY).message
    world.edit(suspend=True)  # the user's own suspension does not hide the limit
    world.settle()
    world.edit(suspend=False)
    world.settle()
    assert world.status.phase is Phase.SUSPENDED
    world.edit(retry_generation=1)
    world.settle()
    assert (world.status.phase, world.status.restarts, world.status.retry_generation) == (Phase.STARTING, 0, 1)


def test_new_budget_while_the_user_suspends_does_not_start_the_job() -> None:
    world = World(make_job(fault=FaultPolicy(max_restarts=0))).run()
    world.beat(1, exits={1: 3})
    world.settle()
    world.edit(suspend=True, retry_generation=1)
    world.settle()
    assert (world.status.phase, world.reason(C.SUSPENDED)) == (Phase.SUSPENDED, Reason.SUSPENDED)
    world.edit(suspend=False)
    world.settle()
    assert world.status.phase is Phase.STARTING


def test_retry_generation_given_at_creation_grants_nothing() -> None:
    world = World(make_job(retry_generation=5, fault=FaultPolicy(max_restarts=0))).run()
    world.beat(1, exits={0: 1})
    world.settle()
    assert world.status.phase is Phase.SUSPENDED


def test_disruption_does_not_use_the_budget_but_a_crash_does() -> None:
    """kubernetes-sigs/jobset, host maintenance example."""
    world = World(make_job(fault=FaultPolicy(max_restarts=0, on_restart_limit=RestartLimitAction.FAIL))).run()
    world.change_pod(1, disrupted=True)
    world.settle()
    assert (world.status.phase, world.status.restarts, world.status.infrastructure_restarts) == (Phase.RESTARTING, 0, 1)
    world.start_pods()
    world.beat(1)
    world.settle()
    world.beat(2, exits={0: 1})
    world.settle()
    assert world.status.phase is Phase.FAILED


def test_job_suspended_while_it_recovers_lets_its_reservation_go() -> None:
    world = World().run()
    world.linger = True
    world.change_pod(1, disrupted=True)
    world.settle()
    world.edit(suspend=True)
    world.settle()
    world.bury()
    world.settle()
    assert (world.status.phase, world.claim()) == (Phase.SUSPENDED, None)
    assert not world.holds(C.RESTARTING)
