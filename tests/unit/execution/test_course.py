"""The normal course of a job, from its first status to the end."""

import pytest

from kuangchao_contracts.api.trainingjob import SuccessPolicy
from kuangchao_contracts.plan import TrainingSpec
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Phase, Reason
from kuangchao_contracts.run import RankReport, RankState
from kuangchao_operator.layers.execution.facts import storable
from kuangchao_operator.layers.execution.model import (
    DeleteJob,
    Emit,
    Launch,
    Plan,
    Reclaim,
    RecordPlan,
    RenewTokens,
    Stop,
)
from kuangchao_operator.layers.execution.queue import admit
from tests.unit.execution.world import World, holder, make_job, make_pool, waiting


def test_first_status_has_every_condition_and_looks_unfinished_to_kstatus() -> None:
    world = World()
    decision = world.turn()
    assert [c.type for c in world.status.conditions] == [c.value for c in C]
    assert world.status.observed_generation == 1
    assert {c.observed_generation for c in world.status.conditions} == {1}
    assert world.condition(C.READY).status == "Unknown"
    assert world.holds(C.RECONCILING)
    assert (world.status.phase, world.status.ready) == (Phase.PENDING, "0/2")
    assert [type(a) for a in decision.actions] == [Plan]


def test_reservation_and_admission_come_in_one_status_before_any_child() -> None:
    world = World()
    world.turn()
    decision = world.decide()
    assert decision.status is not None
    assert {s.node: s.pods for s in decision.status.allocation} == {"a": "0", "b": "1"}
    held = {c.type for c in decision.status.conditions if c.status == "True"}
    assert {C.PLANNED, C.QUOTA_RESERVED, C.ADMITTED} <= held
    assert (decision.status.attempt, decision.status.incarnation) == (1, 0)
    work = [a for a in decision.actions if not isinstance(a, Emit)]
    assert [type(a) for a in work] == [RecordPlan, Launch]
    assert decision.status.plan_summary == "dp2"


def test_phases_on_the_way_to_complete() -> None:
    world = World(make_job(training={"steps": 300}))
    seen = []
    for act in (
        lambda: None,
        world.start_pods,
        lambda: world.beat(0, RankState.STARTING),
        lambda: world.beat(120),
        lambda: world.beat(300, exits={0: 0, 1: 0}),
    ):
        act()
        world.settle()
        seen.append((world.status.phase, world.status.ready))
    assert seen == [
        (Phase.STARTING, "0/2"),
        (Phase.STARTING, "2/2"),
        (Phase.STARTING, "2/2"),
        (Phase.RUNNING, "2/2"),
        (Phase.COMPLETE, "2/2"),
    ]
    assert world.status.progress_text == "300/300"
    assert world.status.restart_budget == "0/3"


def test_complete_frees_everything_and_never_runs_again() -> None:
    world = World().run()
    world.beat(100, exits={0: 0, 1: 0})
    world.settle()
    assert world.holds(C.COMPLETE)
    assert world.holds(C.READY)
    assert not world.holds(C.RECONCILING)
    assert not world.pods
    assert world.status.allocation == ()
    assert world.claim() is None
    assert len(world.actions(Reclaim)) == 1
    world.log.clear()
    world.edit(retry_generation=1, suspend=True)
    world.settle()
    assert world.holds(C.COMPLETE)
    assert world.log == []


def test_quota_returns_when_the_pods_are_gone_and_not_before() -> None:
    """kubernetes-sigs/kueue#1574, kubeflow/trainer#1982."""
    world = World(make_job(count=3, success_policy=SuccessPolicy.RANK0)).run()
    world.linger = True
    world.beat(100, only=[0], exits={0: 0})
    world.settle()
    assert world.holds(C.COMPLETE)
    claim = world.claim()
    assert claim is not None
    assert sum(s.devices for s in claim.shares) == 3
    assert all(p.deleting for p in world.pods.values())
    assert sum(s.devices for s in world.status.allocation) == 3, "pods that no node has yet are counted by this alone"
    world.bury()
    world.settle()
    assert world.claim() is None
    assert world.status.allocation == ()


def test_usage_of_a_finished_job_is_derived_from_pods_after_an_operator_restart() -> None:
    """kubernetes-sigs/kueue#1503."""
    world = World().run()
    world.beat(100, exits={0: 0, 1: 0})
    world.settle()
    world.facts = {}
    world.settle()
    assert world.claim() is None
    assert not world.status.allocation
    heir = waiting("heir", 8)
    assert not admit(make_pool(waiting=(heir,), claims=(holder("other", "a", 2),)), heir).allocation
    assert admit(make_pool(waiting=(heir,), claims=tuple(filter(None, [world.claim()]))), heir).allocation


def test_success_is_read_from_the_training_container_only() -> None:
    """kubeflow/trainer#1577, #1183."""
    world = World().run()
    for index in range(2):
        # the side-car keeps the pod Running; only the training container has ended
        world.change_pod(index, phase="Running", ready=False, exit_code=0)
    world.settle()
    assert world.holds(C.COMPLETE)


def test_exits_survive_an_operator_outage_in_the_termination_log() -> None:
    world = World().run()
    last = "[" + RankReport(rank=1, state=RankState.EXITED, exit_code=7, step=9).model_dump_json(by_alias=True) + "]"
    world.agents.clear()
    world.change_pod(0, exit_code=0)
    world.change_pod(1, exit_code=1, phase="Failed", termination_message=last)
    world.turn()
    failure = world.assessed[0].report.failures[0]
    assert (failure.rank, failure.exit_code, failure.step, failure.pod) == (1, 7, 9, world.pod(1).name)


@pytest.mark.parametrize(
    "message",
    [
        '[{"rank":',
        "[" * 4_096,
        f'[{{"rank": 1, "state": "Exited", "exitCode": 1, "step": 1{"0" * 400}}}]',
        f'[{{"rank": 1, "state": "Exited", "exitCode": {2**64}}}]',
        '[{"rank": 0, "state": "Exited", "exitCode": 1, "errorKind": "UserError"}]',
    ],
    ids=["torn", "deep", "step", "exit code", "another pod's rank"],
)
def test_broken_termination_message_falls_back_to_the_exit_code(message: str) -> None:
    """Any process of the pod may have written it."""
    world = World().run()
    world.change_pod(1, exit_code=139, phase="Failed", termination_message=message)
    world.turn()
    report = world.assessed[0].report
    assert (report.reason, report.failures[0].exit_code) == (Reason.RANK_EXITED, 139)


def test_progress_stands_until_restarted_ranks_make_a_step() -> None:
    """Ranks that are starting report step 0: to show that would say that all work is lost."""
    world = World(make_job(training=TrainingSpec(steps=1000))).run(step=400)
    world.pass_time(6)
    world.beat(400, exits={1: -9})
    world.settle()
    world.pass_time(6)
    world.beat(0)
    world.settle()
    assert (world.status.attempt, world.status.progress_text) == (2, "400/1000")
    world.pass_time(6)
    world.beat(381)
    world.settle()
    assert world.status.progress_text == "381/1000"


def test_progress_is_written_at_most_every_five_seconds_or_on_a_jump() -> None:
    world = World(make_job(training={"steps": 1000})).run(step=1)
    writes = world.writes
    for step in range(2, 6):
        world.pass_time(1)
        world.beat(step)
        world.settle()
    assert world.writes == writes
    world.pass_time(1)
    world.beat(6)
    world.settle()
    assert (world.writes, world.status.progress_text) == (writes + 1, "6/1000")
    world.pass_time(0.5)
    world.beat(60)
    world.settle()
    assert world.status.progress is not None
    assert (world.status.progress.percent, world.status.progress.step) == (6, 60)
    assert world.status.progress.eta_seconds == round(0.5 / 54 * 940)


def test_tokens_are_renewed_at_ninety_seconds() -> None:
    world = World().run()
    world.pass_time(89)
    world.settle()
    assert not world.actions(RenewTokens)
    world.pass_time(1)
    world.settle()
    assert [(a.attempt, a.incarnation) for a in world.actions(RenewTokens)] == [(1, 0)]


def test_ttl_starts_at_the_end_and_deletes_once_it_has_passed() -> None:
    world = World(make_job(ttl_seconds_after_finished=60)).run()
    world.beat(100, exits={0: 0, 1: 0})
    assert world.settle().wake_after_seconds == 60
    world.pass_time(59)
    world.settle()
    assert not world.deleted
    world.pass_time(1)
    world.turn()
    assert world.deleted
    assert len(world.actions(DeleteJob)) == 1


def test_time_to_live_waits_for_pods_that_still_end() -> None:
    world = World(make_job(ttl_seconds_after_finished=2)).run()
    world.linger = True
    world.beat(100, exits={0: 0, 1: 0})
    world.settle()
    world.pass_time(3)
    world.settle()
    assert not world.deleted
    world.bury()
    world.turn()
    world.turn()
    assert world.deleted


def test_operator_restart_between_status_and_launch_launches() -> None:
    """volcano-sh/volcano#3373."""
    world = World()
    world.turn()
    decision = world.decide()
    world.job = world.job.model_copy(update={"status": decision.status})
    world.facts = {}
    world.settle()
    assert len(world.pods) == 2
    assert world.status.attempt == 1
    assert len(world.actions(Launch)) == 1


def test_operator_restart_while_running_changes_nothing() -> None:
    world = World().run(step=5)
    before = world.status
    world.facts, world.agents = {}, {}
    world.started = world.now
    world.settle()
    assert world.status == before
    assert world.holds(C.READY)
    # tokens are minted anew under the same attempt, pods are left alone
    assert [type(a) for a in world.log if not isinstance(a, Emit)][-1] is Launch


def test_late_watch_events_neither_add_nor_remove_pods() -> None:
    """ray-project/kuberay#715."""
    world = World()
    world.settle()
    world.pods.clear()  # launched, but not seen yet
    world.pass_time(2)
    world.settle()
    assert not world.actions(Stop)
    assert not world.assessed
    assert len(world.actions(Launch)) == 1


def test_another_controller_keeps_its_job() -> None:
    world = World(make_job(managed_by="kueue.x-k8s.io/multikueue"))
    assert world.decide().status is None
    assert world.settle().actions == ()
    own = World(make_job(managed_by="kuangchao.io/operator"))
    assert own.decide().status is not None


def test_command_jobs_say_which_guarantees_they_lack() -> None:
    world = World(make_job(command=("train.py",))).run()
    assert world.holds(C.UNMANAGED)
    assert world.status.progress_text in ("", "1")
    silent = World(make_job(command=("train.py",)))
    silent.settle()
    silent.start_pods()
    silent.beat(0, RankState.STARTING)  # programs that know nothing of us never say more
    silent.settle()
    assert silent.status.phase is Phase.RUNNING
    assert not World(make_job()).run().holds(C.UNMANAGED)


@pytest.mark.parametrize("stage", ["queued", "starting", "running", "complete", "suspended", "recovering"])
def test_deletion_in_any_state_leaves_nothing_behind(stage: str) -> None:
    """Twingate/kubernetes-operator#403."""
    world = World()
    if stage == "queued":
        world.pool = make_pool({"a": 1, "b": 1}, claims=())
        world.turn()
    elif stage == "starting":
        world.settle()
    else:
        world.run()
    if stage == "complete":
        world.beat(100, exits={0: 0, 1: 0})
    if stage == "suspended":
        world.edit(suspend=True)
    if stage == "recovering":
        world.linger = True
        world.change_pod(0, disrupted=True)
    world.turn()
    world.pool, world.plan = None, None  # deleted before the job: not found is success
    meta = world.job.metadata.replace(deletion_timestamp=world.now)
    world.job = world.job.model_copy(update={"metadata": meta})
    world.settle()
    world.bury()
    assert world.settle().released
    assert not world.pods
    assert not world.status.allocation


def test_pool_that_vanishes_under_a_running_job_does_not_end_it() -> None:
    """Twingate/kubernetes-operator#403."""
    world = World().run()
    world.pool = None
    world.settle()
    assert world.status.phase is Phase.RUNNING
    world.beat(100, exits={0: 0, 1: 0})
    world.settle()
    assert world.holds(C.COMPLETE)


def test_progress_of_a_script_is_what_it_says() -> None:
    """Its job has `training.steps` too, but nothing makes a script keep to it."""
    world = World(make_job(command=("train.py",), training={"steps": 1000})).run(step=0)
    world.beat(10)
    world.settle()
    assert world.status.progress_text == "10"
    world.pass_time(6)
    world.beat(25, total=50)
    world.settle()
    assert world.status.progress is not None
    assert (world.status.progress_text, world.status.progress.percent) == ("25/50", 50)
    world.pass_time(6)
    world.beat(50, exits={0: 0, 1: 0})  # last words of an older agent do not say how many there are
    world.settle()
    assert world.status.progress_text == "50/50"
    assert world.holds(C.COMPLETE)


def test_number_of_steps_that_no_status_can_hold_is_refused() -> None:
    report = RankReport(rank=0, state=RankState.RUNNING, total_steps=2**53 + 1)
    assert not storable(report)
