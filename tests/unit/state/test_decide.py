"""The table of recoveries and its limits."""

from typing import Any

import pytest

from kuangchao_contracts.api import ObjectMeta, TrainingJob
from kuangchao_contracts.api.trainingjob import (
    MAX_MEMORY_FAILURES,
    Devices,
    Failure,
    FaultPolicy,
    HangAction,
    MemoryFailure,
    RestartLimitAction,
    TrainingJobSpec,
    TrainingJobStatus,
)
from kuangchao_contracts.faults import FaultDecision, FaultReport, Recovery
from kuangchao_contracts.reasons import INFRASTRUCTURE, Reason
from kuangchao_operator.layers.state.decide import MAX_IDLE_RESTARTS, RECOVERY, assess
from tests.unit.execution.world import START

GIB = 2**30


def failure(
    reason: Reason, *, step: int = 10, attempt: int = 2, message: str = "boom", rank: int | None = 1
) -> Failure:
    return Failure(reason=reason, message=message, node="b", rank=rank, attempt=attempt, step=step, time=START)


def judge(
    reason: Reason,
    *,
    policy: FaultPolicy | None = None,
    alive: bool = True,
    last: Failure | None = None,
    step: int = 10,
    message: str = "boom",
    peaks: tuple[int, ...] = (),
    estimated: int | None = None,
    program: dict[str, object] | None = None,
    **status: object,
) -> FaultDecision:
    fields = {"attempt": 2, "start_time": START, "last_failure": last, **status}
    job = TrainingJob(
        metadata=ObjectMeta(name="job", namespace="team", uid="u"),
        spec=TrainingJobSpec.model_validate(
            {"pool": "p", "devices": Devices(count=2), "fault": policy or FaultPolicy(), **(program or {"task": "m:f"})}
        ),
        status=TrainingJobStatus.model_validate(fields),
    )
    first = failure(reason, step=step, message=message)
    others = tuple(first.replace(peak_memory_bytes=peak, memory_limit_bytes=8 * GIB) for peak in peaks)
    report = FaultReport(
        reason=reason,
        attempt=2,
        failures=others or (first,),
        estimated_peak_bytes=estimated,
        pods_alive=alive,
        nodes_lost=("b",) if reason is Reason.NODE_LOST else (),
    )
    return assess(report, job)


PLAN_OUT_OF_MEMORY = MemoryFailure(plan="dp2 micro-batch 8", plan_hash="a", wish="b", measured_bytes=GIB, attempt=1)
TABLE = [
    (Reason.USER_ERROR, Recovery.RESTART_RANKS, True),
    (Reason.RANK_EXITED, Recovery.RESTART_RANKS, True),
    (Reason.EARLY_EXIT, Recovery.RESTART_RANKS, True),
    (Reason.OUT_OF_MEMORY, Recovery.RESTART_RANKS, True),
    (Reason.HUNG, Recovery.RESTART_RANKS, True),
    (Reason.START_DEADLINE_EXCEEDED, Recovery.NEW_PODS, True),
    (Reason.IMAGE_PULL, Recovery.NEW_PODS, True),
    (Reason.NODE_LOST, Recovery.NEW_PODS, False),
    (Reason.POD_LOST, Recovery.NEW_PODS, False),
    (Reason.EVICTED, Recovery.NEW_PODS, False),
    (Reason.AGENT_LOST, Recovery.NEW_PODS, False),
    (Reason.TASK_NOT_FOUND, Recovery.FAIL, False),
    (Reason.CHECKPOINT_CORRUPT, Recovery.FAIL, False),
    (Reason.CHILD_CREATION_FAILED, Recovery.FAIL, False),
    (Reason.INVALID_SPEC, Recovery.FAIL, False),
    (Reason.CHECKPOINT_PATH_IN_USE, Recovery.FAIL, False),
    (Reason.STORAGE, Recovery.NEW_PODS, True),
    (Reason.AUDIT_UNAVAILABLE, Recovery.RESTART_RANKS, True),
]


@pytest.mark.parametrize(("reason", "recovery", "charged"), TABLE)
def test_recovery_by_reason(reason: Reason, recovery: Recovery, charged: bool) -> None:
    verdict = judge(reason)
    assert (verdict.recovery, verdict.charged, verdict.reason) == (recovery, charged, reason)
    assert "rank 1 on b at step 10: boom" in verdict.message


def test_table_covers_every_fault() -> None:
    assert {reason for reason, _, _ in TABLE} == set(RECOVERY)


@pytest.mark.parametrize("reason", [r for r, recovery in RECOVERY.items() if recovery is Recovery.RESTART_RANKS])
def test_ranks_are_not_restarted_in_dead_pods(reason: Reason) -> None:
    assert judge(reason, alive=False).recovery is Recovery.NEW_PODS


def test_only_suspect_nodes_are_avoided() -> None:
    assert judge(Reason.NODE_LOST).avoid_nodes == ("b",)
    assert judge(Reason.AGENT_LOST).avoid_nodes == ("b",)
    assert judge(Reason.EVICTED).avoid_nodes == ()
    assert judge(Reason.RANK_EXITED, alive=False).avoid_nodes == ()


@pytest.mark.parametrize("action", RestartLimitAction)
def test_budget(action: RestartLimitAction) -> None:
    policy = FaultPolicy(max_restarts=2, on_restart_limit=action)
    assert judge(Reason.RANK_EXITED, policy=policy, restarts=1).recovery is Recovery.RESTART_RANKS
    verdict = judge(Reason.RANK_EXITED, policy=policy, restarts=2)
    assert (verdict.recovery.value, verdict.reason, verdict.charged) == (
        action.value,
        Reason.RESTART_LIMIT_EXCEEDED,
        False,
    )
    assert "fault.maxRestarts=2 used up" in verdict.message


def test_budget_is_finite_where_nobody_sets_one() -> None:
    """kubeflow/trainer#1589."""
    assert judge(Reason.RANK_EXITED, restarts=2).recovery is Recovery.RESTART_RANKS
    assert judge(Reason.RANK_EXITED, restarts=3).recovery is Recovery.SUSPEND


@pytest.mark.parametrize("reason", sorted(INFRASTRUCTURE))
def test_platform_faults_do_not_use_the_budget_but_do_not_go_on_for_ever(reason: Reason) -> None:
    policy = FaultPolicy(max_restarts=0)
    last = failure(reason, attempt=1)
    assert (
        judge(reason, policy=policy, last=last, restarts_without_progress=MAX_IDLE_RESTARTS - 1).recovery
        is Recovery.NEW_PODS
    )
    verdict = judge(reason, policy=policy, last=last, restarts_without_progress=MAX_IDLE_RESTARTS)
    assert (verdict.recovery, verdict.reason) == (Recovery.SUSPEND, Reason.RESTART_LIMIT_EXCEEDED)
    assert (
        judge(reason, policy=policy, last=last, restarts_without_progress=MAX_IDLE_RESTARTS, step=11).recovery
        is Recovery.NEW_PODS
    )


def test_same_user_error_at_the_same_step_twice_in_a_row_ends_the_job() -> None:
    last = failure(Reason.USER_ERROR, attempt=1, message="bad tensor at 0xdeadbeef")
    verdict = judge(Reason.USER_ERROR, last=last, message="bad tensor at 0x1234")
    assert (verdict.recovery, verdict.reason) == (Recovery.FAIL, Reason.USER_ERROR)
    assert "twice in a row" in verdict.message


@pytest.mark.parametrize(
    "last",
    [
        failure(Reason.USER_ERROR, attempt=1, step=9),
        failure(Reason.USER_ERROR, attempt=1, message="something else"),
        failure(Reason.RANK_EXITED, attempt=1),
        failure(Reason.USER_ERROR, attempt=0),
        None,
    ],
)
def test_other_errors_are_tried_again(last: Failure | None) -> None:
    assert judge(Reason.USER_ERROR, last=last).recovery is Recovery.RESTART_RANKS


def test_out_of_memory_twice_at_one_step_ends_the_job_with_advice() -> None:
    """skypilot-org/skypilot#9758."""
    last = failure(Reason.OUT_OF_MEMORY, attempt=1, message="tried to allocate 2 GiB")
    verdict = judge(Reason.OUT_OF_MEMORY, last=last, message="tried to allocate 3 GiB")
    assert (verdict.recovery, verdict.reason) == (Recovery.FAIL, Reason.OUT_OF_MEMORY)
    assert "reduce training.globalBatch" in verdict.message


@pytest.mark.parametrize("reason", [Reason.START_DEADLINE_EXCEEDED, Reason.IMAGE_PULL])
def test_job_that_never_ran_fails_at_its_start_deadline(reason: Reason) -> None:
    assert judge(reason, start_time=None).recovery is Recovery.FAIL


def test_hang_fails_where_the_policy_says_so() -> None:
    assert judge(Reason.HUNG, policy=FaultPolicy(on_hang=HangAction.FAIL)).recovery is Recovery.FAIL


@pytest.mark.parametrize(
    ("case", "recovery", "words"),
    [
        (
            {"estimated": GIB},
            Recovery.REPLAN,
            "measured peak 6.0 GiB where 1.0 GiB were estimated, limit 8.0 GiB; rank",
        ),
        ({}, Recovery.REPLAN, "measured peak 6.0 GiB where nothing was estimated"),
        ({"program": {"command": ["train.py"]}}, Recovery.FAIL, "a command is not planned again"),
        ({"peaks": ()}, Recovery.RESTART_RANKS, "rank 1 on b"),
        ({"restarts": 3}, Recovery.REPLAN, "measured peak"),
        ({"last": failure(Reason.OUT_OF_MEMORY, attempt=1)}, Recovery.REPLAN, "measured peak"),
        ({"out_of_memory": (PLAN_OUT_OF_MEMORY,) * MAX_MEMORY_FAILURES}, Recovery.FAIL, "after 16 plans"),
    ],
    ids=["managed", "no estimate", "command", "no figure", "budget used up", "twice in a row", "too many plans"],
)
def test_a_measured_peak_asks_for_another_plan_and_uses_no_budget(
    case: dict[str, Any], recovery: Recovery, words: str
) -> None:
    verdict = judge(Reason.OUT_OF_MEMORY, **({"peaks": (4 * GIB, 6 * GIB)} | case))
    assert (verdict.recovery, verdict.reason) == (recovery, Reason.OUT_OF_MEMORY)
    assert words in verdict.message
    assert verdict.measured_peak_bytes == (6 * GIB if recovery is Recovery.REPLAN else None)
    assert verdict.charged is (recovery is Recovery.RESTART_RANKS)


def test_a_peak_of_another_fault_is_no_reason_for_another_plan() -> None:
    assert judge(Reason.USER_ERROR, peaks=(GIB,)).recovery is Recovery.RESTART_RANKS
