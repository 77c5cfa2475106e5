"""Faults: one report per attempt with the right cause, and verdicts carried out attempt first."""

from datetime import timedelta

import pytest

from kuangchao_contracts.api.trainingjob import FaultPolicy, HangAction
from kuangchao_contracts.faults import Recovery
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Phase, Reason
from kuangchao_operator.layers.execution.faults import ending
from kuangchao_operator.layers.execution.model import Emit, Launch, PodFact, Stop
from tests.unit.execution.world import World, holder, make_job, make_pool, verdict

NEW_PODS = verdict(Recovery.NEW_PODS, Reason.NODE_LOST, charged=False)


def test_restart_in_the_same_pods_raises_the_attempt_before_anything_is_done() -> None:
    world = World().run(step=40)
    world.beat(41, exits={1: -9})
    world.turn()
    decision = world.decide()
    assert decision.status is not None
    assert (decision.status.attempt, decision.status.incarnation, decision.status.restarts) == (2, 0, 1)
    assert [a for a in decision.actions if not isinstance(a, Emit)] == [Launch(attempt=2, incarnation=0)]
    world.settle()
    assert not world.actions(Stop)
    assert world.status.phase is Phase.RESTARTING
    assert world.reason(C.RESTARTING) == Reason.RANK_EXITED
    world.beat(41)
    world.settle()
    assert world.status.phase is Phase.RUNNING
    assert world.reason(C.RESTARTING) == Reason.RECOVERED
    assert world.reason(C.PODS_READY) == Reason.RECOVERED
    assert world.status.restart_budget == "1/3"


def test_failures_of_one_attempt_are_one_report_with_the_cause_first() -> None:
    """kubeflow/pytorch-operator#270."""
    world = World(make_job(count=4)).run(step=5)
    world.beat(
        5, only=[0, 1, 2], exits={0: 1, 1: 1, 2: 1}, error="Connection closed by peer", error_kind="RuntimeError"
    )
    world.beat(5, only=[3], exits={3: -9})
    world.settle()
    assert len(world.assessed) == 1
    report = world.assessed[0].report
    assert [f.rank for f in report.failures] == [3, 0, 1, 2]
    assert (world.status.attempt, world.status.restarts) == (2, 1)


def test_gradients_that_a_rank_has_spoilt_for_all_are_laid_at_its_door() -> None:
    """Every rank finds that the sum is no number, and whoever has the lowest number is not to blame for that."""
    spoilt = {"error": "rank 0, step 6: the gradient norm is nan", "error_kind": "NonFiniteGradients"}
    world = World().run(step=5)
    world.beat(5, only=[0], exits={0: 1}, **spoilt)
    world.settle()
    assert not world.assessed, "the other may still say what it was"
    world.beat(5, only=[1], exits={1: 1}, error="rank 1, step 6: the loss is nan", error_kind="NonFiniteLoss")
    world.settle()
    assert [f.rank for f in world.assessed[0].report.failures] == [1, 0]
    everywhere = World().run(step=5)
    everywhere.beat(5, exits={0: 1, 1: 1}, **spoilt)
    everywhere.settle()
    assert everywhere.assessed[0].report.failures[0].rank == 0, "there is nobody left to wait for"


def test_lost_peers_wait_for_the_cause_and_count_by_themselves_only_when_none_shows_up() -> None:
    world = World().run()
    world.beat(1, only=[0], exits={0: 1}, error="connectFullMesh failed: Connection refused", error_kind="PeerLost")
    world.settle()
    assert not world.assessed
    world.pass_time(10)
    world.settle()
    assert not world.assessed
    world.change_pod(1, node_ready=False, node_lost_since=world.now - timedelta(seconds=30))
    world.settle()
    assert world.assessed[0].report.reason is Reason.NODE_LOST
    assert world.assessed[0].report.nodes_lost == ("b",)
    alone = World().run()
    alone.beat(1, only=[0], exits={0: 1}, error="Broken pipe", error_kind="RuntimeError")
    alone.pass_time(17)
    alone.turn()
    assert alone.assessed[0].report.reason is Reason.RANK_EXITED


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        ({"error": "ValueError: boom", "error_kind": "ValueError"}, Reason.USER_ERROR),
        ({"error": "out of memory", "error_kind": "torch.OutOfMemoryError"}, Reason.OUT_OF_MEMORY),
        ({"error": "no module", "error_kind": "TaskNotFound"}, Reason.TASK_NOT_FOUND),
        ({"error": "digest", "error_kind": "CheckpointCorrupt"}, Reason.CHECKPOINT_CORRUPT),
        ({"error": "belongs to", "error_kind": "CheckpointPathInUse"}, Reason.CHECKPOINT_PATH_IN_USE),
        ({"error": "cannot read", "error_kind": "Storage"}, Reason.STORAGE),
        ({"error": "usage: train.py", "error_kind": "ExitCode"}, Reason.RANK_EXITED),
        ({"error": "the gate does not answer", "error_kind": "Unavailable"}, Reason.RANK_EXITED),
        ({}, Reason.RANK_EXITED),
    ],
)
def test_what_a_rank_says_of_its_end_decides_the_reason(report: dict[str, str], reason: Reason) -> None:
    world = World().run()
    world.beat(3, exits={1: 1}, **report)
    world.turn()
    assert world.assessed[0].report.reason is reason
    assert world.assessed[0].report.pods_alive


def test_exit_code_and_pod_name_are_in_status_while_the_agent_stays_up() -> None:
    """ray-project/kuberay#1480, #3553."""
    world = World().run()
    world.verdict = verdict(Recovery.FAIL, Reason.RESTART_LIMIT_EXCEEDED)
    world.beat(1, exits={0: 7})
    world.settle()
    failure = world.status.first_failure
    assert failure is not None
    assert (failure.exit_code, failure.rank, failure.pod, failure.node) == (
        7,
        0,
        world.assessed[0].report.failures[0].pod,
        "a",
    )
    assert world.status.phase is Phase.FAILED
    assert world.condition(C.STALLED).status == "True"


def test_rank_that_was_drained_is_a_disruption_and_no_crash() -> None:
    world = World().run()
    world.beat(4, exits={1: 143})
    world.turn()
    assert world.assessed[0].report.reason is Reason.EVICTED


def test_every_restart_is_announced() -> None:
    world = World().run()
    for attempt in (1, 2):
        world.beat(attempt, exits={1: -9})
        world.settle()
    warnings = [a for a in world.actions(Emit) if a.type == "Warning"]
    assert [a.reason for a in warnings] == [Reason.RANK_EXITED, Reason.RANK_EXITED]


def test_failed_job_stops_all_its_pods() -> None:
    """kubeflow/trainer#1579."""
    world = World().run()
    world.verdict = verdict(Recovery.FAIL)
    world.beat(1, exits={1: 1})
    world.settle()
    assert world.holds(C.FAILED)
    assert not world.pods
    assert world.claim() is None
    assert world.status.attempt == 1


POD_FAULTS = {
    Reason.EVICTED: {"disrupted": True, "deleting": True},
    Reason.POD_LOST: {"deleting": True},
    Reason.OUT_OF_MEMORY: {"exit_code": 137, "exit_reason": "OOMKilled", "phase": "Failed"},
    Reason.RANK_EXITED: {"exit_code": 1, "phase": "Failed"},
}


@pytest.mark.parametrize("reason", POD_FAULTS)
def test_faults_of_pods(reason: Reason) -> None:
    world = World().run()
    world.change_pod(1, **POD_FAULTS[reason])
    world.turn()
    report = world.assessed[0].report
    assert report.reason is reason
    assert not report.pods_alive
    assert report.failures[0].pod == world.pod(1).name


def test_pod_that_vanished_is_lost() -> None:
    world = World().run()
    world.lose_pod(1)
    world.turn()
    assert world.assessed[0].report.reason is Reason.POD_LOST


def test_node_is_lost_only_after_the_jobs_patience() -> None:
    world = World(make_job(fault=FaultPolicy(node_lost_seconds=20))).run()
    world.change_pod(1, node_ready=False, node_lost_since=world.now)
    decision = world.settle()
    assert not world.assessed
    assert decision.wake_after_seconds == 5
    world.pass_time(19)
    assert world.settle().wake_after_seconds == 1
    world.pass_time(1)
    world.turn()
    assert world.assessed[0].report.nodes_lost == ("b",)


def test_early_exit_of_one_rank_is_a_fault_after_a_short_grace() -> None:
    world = World(make_job(training={"steps": 100})).run(step=10)
    world.beat(10, only=[1], exits={1: 0})
    world.settle()
    world.pass_time(4)
    world.settle()
    assert not world.assessed
    world.pass_time(1)
    world.turn()
    report = world.assessed[0].report
    assert (report.reason, report.failures[0].rank) == (Reason.EARLY_EXIT, 1)


def test_rank_that_did_all_its_steps_may_wait_long_for_the_last_save_of_others() -> None:
    world = World(make_job(training={"steps": 100})).run(step=99)
    world.beat(100, only=[1], exits={1: 0})
    world.pass_time(120)
    world.settle()
    assert not world.assessed


@pytest.mark.parametrize(
    ("action", "assessed"), [(HangAction.RESTART, True), (HangAction.FAIL, True), (HangAction.OBSERVE, False)]
)
def test_hang_by_policy(action: HangAction, assessed: bool) -> None:
    policy = FaultPolicy(on_hang=action, hang_seconds=60, first_step_seconds=600)
    world = World(make_job(fault=policy)).run(step=0)
    world.pass_time(599)
    world.settle()
    assert not world.assessed
    world.beat(1)
    world.settle()
    world.pass_time(60)
    world.settle()
    assert bool(world.assessed) is assessed
    if assessed:
        assert world.assessed[0].report.reason is Reason.HUNG
    else:
        assert (world.reason(), world.holds(C.READY)) == (Reason.HUNG, True)


@pytest.mark.parametrize("sections", [("train", "stopped"), ("evaluate", "stopped")])
def test_a_rank_whose_process_is_stopped_is_named_for_a_hang(sections: tuple[str, str]) -> None:
    """All of them wait after the same step."""
    world = World(make_job(fault=FaultPolicy(hang_seconds=60, first_step_seconds=60))).run(step=0)
    world.pass_time(1)
    world.beat(5)
    world.settle()
    world.pass_time(60)
    for index, section in enumerate(sections):
        world.beat(5, only=[index], section=section)
    world.settle()
    (found,) = world.assessed
    (failure,) = found.report.failures
    assert (failure.reason, failure.rank, failure.pod) == (Reason.HUNG, 1, world.pod(1).name)
    assert "the process of rank 1 is stopped by a signal; it last told of step 5" in failure.message


def test_steps_that_nobody_could_hear_of_are_no_hang() -> None:
    """An operator that was away for longer than hangSeconds finds its old word on the progress in the status."""
    world = World(make_job(training={"steps": 1000})).run(step=10)
    world.pass_time(10)
    world.beat(20)
    world.settle()
    world.agents.clear()
    world.pass_time(700)
    world.started = world.now
    world.settle()
    world.beat(500)
    world.settle()
    assert not world.assessed
    assert world.status.progress is not None
    assert world.status.progress.step == 500
    world.pass_time(599)
    world.settle()
    assert not world.assessed
    world.pass_time(1)
    world.turn()
    assert world.assessed[0].report.reason is Reason.HUNG, "from then on it counts"


def test_new_pods_only_when_every_old_one_is_gone_and_the_whole_gang_fits() -> None:
    """volcano-sh/volcano#2462, kubeflow/trainer#2000."""
    world = World(make_job(count=4), make_pool({"a": 2, "b": 2})).run()
    world.linger, world.verdict = True, NEW_PODS
    world.change_pod(3, disrupted=True)
    world.settle()
    assert (world.status.attempt, world.status.incarnation) == (2, 1)
    assert all(p.deleting for p in world.pods.values())
    assert len(world.actions(Launch)) == 1
    assert world.claim() is not None
    assert world.condition(C.RECONCILING).message == "waiting for 4 terminating pods"
    del world.pods[next(iter(world.pods))]
    world.settle()
    assert len(world.actions(Launch)) == 1
    # a filler takes one device: the gang waits as a unit and holds nothing
    world.pool = make_pool({"a": 2, "b": 2}, claims=(holder("filler", "b", 1),))
    world.bury()
    world.settle()
    assert (world.status.phase, world.pods, world.claim()) == (Phase.QUEUED, {}, None)
    assert "needs 4 devices (4 pods of 1); 3 of 4 free" in world.condition(C.QUOTA_RESERVED).message
    world.pool = make_pool({"a": 2, "b": 2})
    world.settle()
    assert sorted(p.index for p in world.pods.values()) == [0, 1, 2, 3]
    assert {(p.attempt, p.incarnation) for p in world.pods.values()} == {(2, 1)}


def test_lost_node_is_forced_and_avoided() -> None:
    world = World(pool=make_pool({"a": 1, "b": 1, "c": 1})).run()
    world.linger = True
    world.verdict = verdict(Recovery.NEW_PODS, Reason.NODE_LOST, charged=False, avoid=("b",))
    lost = world.pod(1).name
    world.change_pod(1, node_ready=False, node_lost_since=world.now - timedelta(seconds=60))
    world.settle()
    assert world.actions(Stop)[0].force == (lost,)
    assert lost not in world.pods
    world.bury()
    world.settle()
    assert {s.node for s in world.status.allocation} == {"a", "c"}
    assert (world.status.restarts, world.status.infrastructure_restarts) == (0, 1)


def test_no_spare_node_is_an_explicit_answer_and_no_smaller_gang() -> None:
    """kubernetes-sigs/kueue#6913."""
    world = World(pool=make_pool({"a": 1, "b": 1})).run()
    world.verdict = NEW_PODS
    world.change_pod(1, node_ready=False, node_lost_since=world.now - timedelta(seconds=60))
    world.pool = make_pool({"a": 1, "b": 1}, lost=("b",))
    world.settle()
    assert not world.pods
    assert world.status.phase is Phase.QUEUED
    assert "not ready: b" in world.condition(C.QUOTA_RESERVED).message


def test_pod_that_ignores_its_end_is_hurried_after_termination_seconds() -> None:
    world = World(make_job(fault=FaultPolicy(termination_seconds=30))).run()
    world.linger, world.verdict = True, NEW_PODS
    world.change_pod(1, disrupted=True)
    world.settle()
    world.pass_time(30)
    world.settle()
    assert world.pods
    names = tuple(sorted(world.pods))
    world.pass_time(1)
    world.settle()
    assert world.actions(Stop)[-1].overdue == names
    assert {p.incarnation for p in world.pods.values()} == {1}


def test_stop_is_not_repeated_while_the_watch_is_late() -> None:
    world = World().run()
    world.linger, world.verdict = True, NEW_PODS
    world.change_pod(1, disrupted=True)
    world.settle()
    world.pods = {n: p.replace(deleting=False) for n, p in world.pods.items()}
    before = len(world.actions(Stop))
    world.settle()
    assert len(world.actions(Stop)) == before
    world.pass_time(6)
    world.settle()
    assert len(world.actions(Stop)) == before + 1


def test_late_words_of_the_old_attempt_change_nothing() -> None:
    world = World().run()
    world.beat(1, exits={1: 1}, error="x", error_kind="ValueError")
    world.turn()
    stale = world.agents
    world.settle()
    world.agents = stale
    world.settle()
    assert world.status.attempt == 2
    assert len(world.assessed) == 1


def test_stranger_with_our_name_is_never_joined_by_a_second_pod() -> None:
    """intelligent-machine-learning/dlrover#1407."""
    world = World(make_job(start_deadline_seconds=60))
    world.turn()
    stranger = PodFact(name="job-x-0-1", index=1, incarnation=0, attempt=0, owned=False, phase="Running", ready=True)
    world.pods[stranger.name] = stranger
    world.settle()
    assert not world.actions(Launch)
    assert (world.reason(C.PODS_READY), world.reason()) == (Reason.CHILD_CREATION_FAILED, Reason.CHILD_CREATION_FAILED)
    assert "job-x-0-1" in world.condition(C.PODS_READY).message
    world.pass_time(60)
    world.turn()
    assert world.assessed[0].report.reason is Reason.CHILD_CREATION_FAILED


def test_pod_recreated_by_hand_leads_to_a_new_incarnation() -> None:
    """intelligent-machine-learning/dlrover#1407."""
    world = World().run()
    world.verdict = verdict(Recovery.NEW_PODS, Reason.POD_LOST, charged=False)
    name = world.pod(1).name
    world.change_pod(1, owned=False)
    world.settle()
    ours = [p for p in world.pods.values() if p.owned]
    assert sorted((p.incarnation, p.index) for p in ours) == [(1, 0), (1, 1)]
    assert name in world.pods  # not ours to delete


def test_what_a_rank_says_cannot_steer_a_terminal() -> None:
    world = World().run(step=5)
    world.beat(5, only=[0], exits={0: 1}, error="boom \x1b[31mred\x9b2J\r\nnext", error_kind="ValueError")
    world.settle()
    assert world.assessed[0].report.failures[0].message == "boom \\x1b[31mred\\x9b2J\\x0d\nnext"


def test_an_ended_job_says_that_its_pods_are_still_there() -> None:
    world = World().run(step=5)
    world.verdict = verdict(Recovery.FAIL, Reason.USER_ERROR)
    world.beat(5, exits={0: 1}, error="boom", error_kind="ValueError")
    world.turn()
    world.turn()
    assert (world.status.phase, world.holds(C.RECONCILING)) == (Phase.FAILED, True)
    assert world.condition(C.RECONCILING).message == "waiting for 2 terminating pods"
    world.settle()
    assert (world.holds(C.RECONCILING), world.pods) == (False, {})


def test_active_deadline_counts_from_the_first_running_rank() -> None:
    world = World(make_job(active_deadline_seconds=100)).run()
    world.pass_time(99)
    assert world.settle().wake_after_seconds == 1
    world.pass_time(1)
    world.settle()
    assert (world.status.phase, world.reason(C.FAILED)) == (Phase.FAILED, Reason.DEADLINE_EXCEEDED)
    assert not world.pods


def test_lower_step_after_a_restore_is_shown_but_is_no_progress() -> None:
    world = World().run(step=50)
    world.beat(50, exits={1: -9})
    world.settle()
    world.pass_time(3)
    world.beat(40)
    world.settle()
    progress = world.status.progress
    assert progress is not None
    assert progress.step == 40
    assert progress.updated_at is not None
    assert world.status.attempt_time is not None
    assert progress.updated_at <= world.status.attempt_time


def test_restarts_without_progress_are_counted_and_reset_by_a_new_step() -> None:
    world = World().run(step=5)
    counts = []
    for step in (5, 5, 9):
        world.beat(step, exits={0: -9})
        world.settle()
        counts.append(world.status.restarts_without_progress)
        world.beat(step)
        world.settle()
    assert counts == [0, 1, 0]


def test_spec_edited_into_something_illegal_stalls_with_its_path_before_new_pods() -> None:
    world = World().run()
    world.edit(pod_overrides={"spec": {"hostNetwork": True}})
    world.settle()
    assert world.status.phase is Phase.RUNNING
    world.change_pod(1, disrupted=True)
    world.settle()
    assert (world.status.phase, world.reason(C.STALLED)) == (Phase.STALLED, Reason.INVALID_SPEC)
    assert "podOverrides.spec.hostNetwork" in world.condition(C.STALLED).message
    assert world.claim() is None
    world.edit(pod_overrides={})
    world.settle()
    assert (world.status.phase, len(world.pods)) == (Phase.RESTARTING, 2)


@pytest.mark.parametrize(("code", "words"), [(7, "ended with exit code 7"), (-9, "was ended by signal 9")])
def test_the_end_of_a_rank_in_words(code: int, words: str) -> None:
    assert ending(code) == words
