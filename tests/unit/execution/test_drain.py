"""Ending in order: whoever tells pods to end, the attempt stays open until the last checkpoint is in the ledger."""

from datetime import timedelta
from typing import Any

import pytest

from kuangchao_contracts.api.trainingjob import CheckpointPolicy, CheckpointStorage, FaultPolicy, SuccessPolicy
from kuangchao_contracts.checkpoint import CheckpointManifest
from kuangchao_contracts.errors import StaleEpochError
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Phase, Reason
from kuangchao_contracts.run import CommitRequest, RankState
from kuangchao_operator.gate.fence import JobFence
from kuangchao_operator.layers.execution.launchspec import newest_checkpoint
from kuangchao_operator.layers.execution.model import Emit, Launch, Reclaim, Stop
from kuangchao_operator.layers.state.ledger import commit
from kuangchao_operator.shell.fencing import align
from tests.unit.execution.world import UID, World, make_job

SAVES = CheckpointPolicy(storage=CheckpointStorage(claim_name="disk"))


def running(step: int = 30, **spec: Any) -> World:
    """A job with a checkpoint volume whose pods take their time to end."""
    world = World(make_job(**{"checkpoint": SAVES, **spec})).run(step)
    world.linger = True
    return world


def save(world: World, step: int, attempt: int = 1) -> None:
    """The agent of pod 0 commits."""
    manifest = CheckpointManifest(
        job_uid=UID,
        step=step,
        attempt=attempt,
        world_size=2,
        plan_hash=world.status.plan_hash or "a" * 64,
        torch_version="2",
        files=(),
    )
    request = CommitRequest(path=f"step-{step}.att-{attempt}", manifest=manifest)
    status, _ = commit(world.job, request, attempt, world.now)
    world.job = world.job.model_copy(update={"status": status})


def gate(world: World) -> int | None:
    """The attempt that the gate lets in."""
    fence = JobFence()
    align(fence, world.job)
    return fence.attempt(UID)


def test_ranks_save_while_the_job_is_suspended_and_it_resumes_from_there() -> None:
    world = running(step=30)
    world.edit(suspend=True)
    world.settle()
    assert world.status.phase is Phase.SUSPENDING
    assert (world.status.attempt, gate(world)) == (1, 1)
    assert (world.condition(C.SUSPENDED).status, world.reason(C.SUSPENDED)) == ("False", Reason.SUSPENDING)
    assert not world.holds(C.PODS_READY)
    assert [s.drain for s in world.actions(Stop)] == [True], "tokens stay"
    assert not world.actions(Reclaim)
    world.beat(32)
    save(world, 32)
    world.settle()
    world.bury()
    world.settle()
    assert world.status.progress is not None
    assert world.status.progress.step == 32
    assert (world.status.phase, world.status.attempt, gate(world)) == (Phase.SUSPENDED, 2, None)
    assert (world.claim(), len(world.actions(Reclaim))) == (None, 1)
    with pytest.raises(StaleEpochError):
        save(world, 33)
    world.edit(suspend=False)
    world.settle()
    assert world.actions(Launch)[-1] == Launch(attempt=2, incarnation=1)
    restored = newest_checkpoint(world.job)
    assert restored is not None
    assert (restored.step, restored.path) == (32, "step-32.att-1")


def test_suspending_is_announced_once_and_survives_the_operator() -> None:
    world = running()
    world.edit(suspend=True)
    world.settle()
    asked = len(world.actions(Stop))
    world.facts.clear()
    world.agents.clear()
    for _ in range(3):
        world.pass_time(5)
        world.settle()
    told = [e.reason for e in world.actions(Emit)]
    assert told.count(Reason.SUSPENDING) == 1
    assert (world.status.phase, world.status.attempt) == (Phase.SUSPENDING, 1)
    assert len(world.actions(Stop)) == asked, "pods that are ending are not told again"


def test_pods_that_do_not_end_in_time_lose_their_attempt_and_are_hurried() -> None:
    world = running(fault=FaultPolicy(termination_seconds=40))
    world.pass_time(500)
    world.edit(suspend=True)
    world.settle()
    world.pass_time(39)
    world.settle()
    assert world.status.phase is Phase.SUSPENDING
    assert not any(s.overdue for s in world.actions(Stop))
    world.pass_time(1)
    world.settle()
    assert (world.status.phase, world.status.attempt) == (Phase.SUSPENDED, 2)
    assert world.claim() is not None, "devices are not free while pods may run"
    names = tuple(sorted(world.pods))
    world.pass_time(1)
    world.settle()
    assert world.actions(Stop)[-1].overdue == names
    assert world.claim() is None


def test_a_long_grace_period_is_not_cut_short() -> None:  # A47
    world = running(pod_overrides={"spec": {"terminationGracePeriodSeconds": 300}})
    world.edit(suspend=True)
    world.settle()
    world.pass_time(299)
    world.settle()
    assert world.status.phase is Phase.SUSPENDING
    assert not any(s.overdue or s.force for s in world.actions(Stop))


def test_a_job_that_is_not_known_to_run_yet_may_have_steps_to_save() -> None:
    world = World(make_job(checkpoint=SAVES))
    world.settle()
    world.start_pods()
    world.beat(0, RankState.STARTING)
    world.settle()
    assert world.status.phase is Phase.STARTING
    world.linger = True
    world.pass_time(100)
    world.edit(suspend=True)
    world.settle()
    assert (world.status.phase, gate(world)) == (Phase.SUSPENDING, 1)


def test_a_job_that_was_suspended_while_the_operator_was_away_saves_too() -> None:
    world = running()
    world.facts.clear()
    world.agents.clear()
    world.edit(suspend=True)
    world.settle()
    assert world.status.phase is Phase.SUSPENDING


def test_a_job_without_ranks_has_nothing_to_save() -> None:
    world = World(make_job(checkpoint=SAVES))
    world.settle()
    world.start_pods()
    world.settle()
    world.linger = True
    world.edit(suspend=True)
    world.settle()
    assert (world.status.phase, world.status.attempt) == (Phase.SUSPENDED, 2)
    assert not any(s.drain for s in world.actions(Stop))


def test_a_drain_is_not_called_off_but_followed_by_the_resume() -> None:
    world = running()
    world.edit(suspend=True)
    world.settle()
    world.edit(suspend=False)
    world.settle()
    assert (world.status.phase, len(world.actions(Launch))) == (Phase.SUSPENDING, 1)
    world.bury()
    world.settle()
    assert world.status.phase is Phase.STARTING
    assert (world.status.attempt, world.reason(C.SUSPENDED)) == (2, Reason.RESUMED)


def test_a_task_that_finishes_while_it_is_suspended_is_complete() -> None:
    world = running()
    world.edit(suspend=True)
    world.settle()
    world.beat(100, exits={0: 0, 1: 0})
    world.settle()
    assert (world.status.phase, world.reason(C.SUSPENDED)) == (Phase.COMPLETE, Reason.AS_EXPECTED)


def test_a_script_that_ends_with_0_because_it_was_told_to_is_not_complete() -> None:
    world = running(command=("train.py",))
    world.edit(suspend=True)
    world.settle()
    world.beat(0, exits={0: 0, 1: 0})
    world.settle()
    assert world.status.phase is Phase.SUSPENDING
    world.bury()
    world.settle()
    assert world.status.phase is Phase.SUSPENDED


def test_a_script_that_was_done_before_is_complete() -> None:
    world = running(command=("train.py",), success_policy=SuccessPolicy.RANK0)
    world.beat(0, exits={0: 0})
    world.edit(suspend=True)
    world.settle()
    assert world.status.phase is Phase.COMPLETE


def evict(world: World, seconds: int = 30) -> None:
    """The kubelet sends SIGTERM to pod 1."""
    world.change_pod(1, deleting=True, disrupted=True, ready=False, ends_by=world.now + timedelta(seconds=seconds))


def test_an_evicted_pod_drains_with_its_gang_before_the_next_attempt() -> None:  # A17, fault 20
    world = running(fault=FaultPolicy(max_restarts=0))
    evict(world)
    world.settle()
    assert (world.status.attempt, gate(world)) == (1, 1)
    assert world.reason(C.PODS_READY) == Reason.EVICTED
    world.pass_time(3)
    world.beat(32, only=[1], exits={1: 143})
    world.lose_pod(1)
    world.beat(32, only=[0])  # its rank is reported once its checkpoint is committed
    world.settle()
    assert (world.status.attempt, world.assessed) == (1, [])
    save(world, 32)
    world.beat(32, only=[0], exits={0: 143})
    world.settle()
    assert (world.status.attempt, world.status.incarnation) == (2, 1)
    assert (world.status.restarts, world.status.infrastructure_restarts) == (0, 1)
    assert len(world.assessed) == 1
    restored = newest_checkpoint(world.job)
    assert restored is not None
    assert restored.step == 32


def test_an_evicted_pod_has_its_grace_period_and_no_more() -> None:
    world = running()
    evict(world, seconds=30)
    world.settle()
    world.pass_time(29)
    world.settle()
    assert world.status.attempt == 1
    world.pass_time(1)
    world.settle()
    assert world.status.attempt == 2


def test_a_gang_does_not_wait_longer_for_the_last_commit_than_a_grace_period() -> None:
    world = running()
    evict(world)
    world.beat(32, only=[1], exits={1: 143})
    world.lose_pod(1)
    world.pass_time(29)
    world.settle()
    assert world.status.attempt == 1
    world.pass_time(1)
    world.settle()
    assert (world.status.attempt, world.assessed[0].report.reason) == (2, Reason.POD_LOST)


def test_a_drain_that_cannot_succeed_is_not_waited_for() -> None:
    world = running()
    evict(world)
    world.settle()
    world.beat(31, only=[0], exits={0: -9})
    world.settle()
    assert world.status.attempt == 2
    bare = running(checkpoint=CheckpointPolicy())
    evict(bare)
    bare.settle()
    assert bare.status.attempt == 2, "nowhere to save to"


def test_a_script_has_its_grace_period_though_its_peers_never_end() -> None:
    world = running(command=("train.py",))
    evict(world)
    world.settle()
    assert world.status.attempt == 1
    world.change_pod(1, exit_code=143, phase="Failed")
    world.settle()
    assert (world.status.attempt, world.status.restarts) == (2, 0)


def test_a_pod_that_was_ended_before_its_ranks_began_is_no_crash() -> None:
    world = World(make_job(fault=FaultPolicy(max_restarts=0)))
    world.settle()
    world.start_pods()
    world.change_pod(0, exit_code=143, phase="Failed", ready=False, exit_reason="Error")
    world.settle()
    assert world.assessed[0].report.reason is Reason.EVICTED
    assert (world.status.phase, world.status.restarts) == (Phase.RESTARTING, 0)
