"""Pods that have ended join no attempt any more: their gang starts again in new ones, and at once."""

import json
from datetime import timedelta

import pytest

from kuangchao_contracts.api.trainingjob import FaultPolicy, SuccessPolicy
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Phase, Reason
from kuangchao_contracts.run import HeartbeatRequest
from tests.unit.execution.world import World, make_job

BROKEN = {"error": "boom", "error_kind": "ValueError"}
FAILED = {"exit_code": 1, "phase": "Failed"}
DONE = {"exit_code": 0, "phase": "Succeeded", "ready": False}
DONE_WORDS = json.dumps([{"rank": 1, "state": "Exited", "exitCode": 0, "step": 100}])
FAILED_WORDS = json.dumps(
    [{"rank": 1, "state": "Exited", "exitCode": 1, "step": 100, "error": "boom", "errorKind": "ValueError"}]
)


def counts(world: World) -> tuple[int, int, int, int]:
    """Attempt, incarnation, and restarts of both kinds."""
    status = world.status
    return status.attempt, status.incarnation, status.restarts, status.infrastructure_restarts


def waits(world: World, index: int) -> None:
    """The agent of a pod has joined the present attempt, which has no ranks before all others have."""
    world.beat(0, only=[index])
    agent = world.agents[index]
    world.agents[index] = agent.replace(heartbeat=HeartbeatRequest(join=agent.heartbeat.join, ranks=()))


def restarted(**changes: object) -> World:
    """Rank 0 has failed, and ranks are to start again in the same pods; then something befalls pod 1."""
    world = World(make_job(training={"steps": 100})).run(step=100)
    world.beat(100, only=[0], exits={0: 1}, **BROKEN)
    world.settle()
    assert counts(world) == (2, 0, 1, 0)
    world.change_pod(1, **changes)
    return world


@pytest.mark.parametrize("policy", SuccessPolicy)
def test_a_rank_that_fails_after_another_pod_has_ended_starts_again_in_new_pods(policy: SuccessPolicy) -> None:
    world = World(make_job(training={"steps": 100}, success_policy=policy)).run(step=100)
    world.beat(100, only=[1], exits={1: 0})
    world.change_pod(1, **DONE)
    world.settle()
    world.beat(100, only=[0], exits={0: 1}, **BROKEN)
    world.settle()
    assert counts(world) == (2, 1, 1, 0)
    assert {p.incarnation for p in world.pods.values()} == {1}


def test_a_rank_that_fails_while_another_pod_is_about_to_end_starts_again_in_new_pods() -> None:
    """Its agent has said that its ranks ended well, and leaves; that it has left is seen seconds later."""
    world = World(make_job(training={"steps": 100})).run(step=100)
    world.beat(100, only=[1], exits={1: 0})
    world.beat(100, only=[0], exits={0: 1}, **BROKEN)
    world.settle()
    assert counts(world) == (2, 1, 1, 0)


def test_a_pod_with_a_rank_that_goes_on_stays() -> None:
    world = World(make_job(count=4, per_pod=2, training={"steps": 100})).run(step=100)
    world.beat(100, only=[1], exits={2: 0})
    world.beat(100, only=[0], exits={0: 1}, **BROKEN)
    world.settle()
    assert counts(world) == (2, 0, 1, 0)


def test_ranks_that_end_one_by_one_before_their_last_step_start_again_in_new_pods() -> None:
    world = World(make_job(training={"steps": 100})).run(step=0)
    world.change_pod(0, **DONE, finished_at=world.now - timedelta(seconds=6))
    world.settle()
    assert world.assessed[0].report.reason is Reason.EARLY_EXIT
    assert counts(world) == (2, 1, 1, 0)
    assert {p.incarnation for p in world.pods.values()} == {1}


@pytest.mark.parametrize("seconds", [0, 3])
def test_a_pod_that_ends_before_it_has_joined_the_new_attempt_is_lost(seconds: float) -> None:
    world = restarted(**DONE)
    world.pass_time(seconds)
    waits(world, 0)
    world.settle()
    report = world.assessed[-1].report
    assert (report.reason, report.attempt, report.pods_alive) == (Reason.POD_LOST, 2, False)
    assert report.failures[0].message == "the pod ended with exit code 0 before it joined attempt 2"
    assert counts(world) == (3, 1, 1, 1), "one fault was the task's, and it is charged once"
    assert world.status.phase is Phase.RESTARTING


def test_all_pods_that_end_before_they_have_joined_have_not_done_the_new_attempt() -> None:
    world = restarted(**DONE)
    world.change_pod(0, **DONE)
    world.settle()
    assert not world.holds(C.COMPLETE)
    assert counts(world) == (3, 1, 1, 1)


def test_last_words_about_an_attempt_that_is_over_are_no_second_fault() -> None:
    """The same words twice in a row would end the job."""
    world = World(make_job(training={"steps": 100})).run(step=100)
    world.beat(100, only=[1], exits={1: 1}, **BROKEN)
    world.settle()
    world.change_pod(1, **FAILED, termination_message=FAILED_WORDS)
    world.settle()
    assert [a.report.reason for a in world.assessed] == [Reason.USER_ERROR, Reason.POD_LOST]
    assert counts(world) == (3, 1, 1, 1)


def test_a_pod_that_could_not_join_says_so_itself() -> None:
    world = restarted(**FAILED, exit_reason="Error", termination_message="cannot join: no token")
    world.settle()
    assert world.assessed[-1].report.reason is Reason.RANK_EXITED
    assert counts(world) == (3, 1, 2, 0)


def test_a_pod_that_is_deleted_or_gone_before_it_has_joined_is_lost() -> None:
    deleted = restarted(deleting=True)
    deleted.settle()
    gone = restarted()
    gone.lose_pod(1)
    gone.settle()
    for world in (deleted, gone):
        assert world.assessed[-1].report.reason is Reason.POD_LOST
        assert counts(world) == (3, 1, 1, 1)


def test_an_operator_that_comes_up_sees_it_by_who_still_waits() -> None:
    world = restarted(**DONE, termination_message=DONE_WORDS)
    world.agents.clear()
    world.started = world.now
    world.settle()
    assert counts(world) == (2, 0, 1, 0), "nobody has said anything yet"
    waits(world, 0)
    world.settle()
    assert counts(world) == (3, 1, 1, 1)


def test_an_operator_that_comes_up_believes_a_pod_whose_peers_have_ranks() -> None:
    world = restarted()
    world.beat(100)
    world.settle()
    world.change_pod(1, **DONE, termination_message=DONE_WORDS)
    del world.agents[1]
    world.started = world.now
    world.settle()
    world.beat(100, only=[0], exits={0: 0})
    world.settle()
    assert world.holds(C.COMPLETE)
    assert counts(world) == (2, 0, 1, 0)


def test_a_pod_that_ends_well_in_the_attempt_that_it_has_joined_is_no_fault() -> None:
    world = restarted()
    world.beat(100)
    world.settle()
    world.beat(100, only=[1], exits={1: 0})
    world.change_pod(1, **DONE)
    world.pass_time(60)
    world.settle()
    assert counts(world) == (2, 0, 1, 0)
    world.beat(100, only=[0], exits={0: 0})
    world.settle()
    assert world.holds(C.COMPLETE)


def test_a_budget_of_none_is_not_widened_by_a_pod_that_has_left() -> None:
    world = World(make_job(training={"steps": 100}, fault=FaultPolicy(max_restarts=0))).run(step=100)
    world.beat(100, only=[1], exits={1: 0})
    world.change_pod(1, **DONE)
    world.beat(100, only=[0], exits={0: 1}, **BROKEN)
    world.settle()
    assert world.reason(C.SUSPENDED) == Reason.RESTART_LIMIT_EXCEEDED


def test_a_job_resumed_after_a_pod_had_left_has_new_pods() -> None:
    world = restarted(**DONE)
    world.edit(suspend=True)
    world.settle()
    assert world.holds(C.SUSPENDED)
    assert not world.holds(C.COMPLETE)
    world.edit(suspend=False)
    world.settle()
    assert {p.incarnation for p in world.pods.values()} == {world.status.incarnation}
    assert world.status.incarnation > 0
    assert all(p.exit_code is None for p in world.pods.values())
