"""What an interrupted operation came to: judged by marks that it leaves, and never guessed."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.audit import AuditRecord, Decision, Stage
from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.ports.execution import LaunchRequest, StopRequest
from kuangchao_operator.layers.execution.model import PodFact
from kuangchao_operator.shell.recovery import PROBES, JobTruth, result
from tests.unit.authority.records import record
from tests.unit.kube.bodies import UID, job

NOW = datetime(2027, 1, 15, tzinfo=UTC)
DIGEST = "ab" * 32
ENTRY = CheckpointRef(step=40, attempt=3, path="step-40.att-3", digest=DIGEST, time=NOW)
PLACED: dict[str, Any] = {"allocation": [{"node": "n1", "pods": "0-1", "devices": 2}]}
LAUNCH = LaunchRequest(attempt=3, incarnation=1, plan_hash="0" * 64).audit_text()
STOP = StopRequest(incarnation=1, reason="Fault").audit_text()
COMMIT = f"step 40 attempt 3 manifest {DIGEST} rank0=12:ff"


def truth(*pods: PodFact, service: bool = True, **status: Any) -> JobTruth:
    body = job(status={"attempt": 3, "incarnation": 1, **PLACED, **status})
    return JobTruth(TrainingJob.model_validate(body), pods, service)


def pod(index: int, incarnation: int = 1, attempt: int = 3, deleting: bool = False) -> PodFact:
    return PodFact(name=f"p{index}", index=index, incarnation=incarnation, attempt=attempt, deleting=deleting)


def intent(op: str, detail: str = "") -> AuditRecord:
    return record(
        stage=Stage.INTENT, decision=Decision.ERROR, op=op, detail=detail, reason="Pending", job_uid=UID
    )  # fmt: skip


DONE, NOT_DONE, UNKNOWN = (Decision.ALLOW, "Recovered"), (Decision.ERROR, "Recovered"), (Decision.ERROR, "Interrupted")
BOTH = (pod(0), pod(1))
CASES: dict[str, tuple[str, str, JobTruth | None, tuple[Decision, str]]] = {
    "launch: all pods": ("execution.launch", LAUNCH, truth(*BOTH), DONE),
    "launch: one of two": ("execution.launch", LAUNCH, truth(pod(0)), NOT_DONE),
    "launch: none": ("execution.launch", LAUNCH, truth(), NOT_DONE),
    "launch: pods of the attempt before": ("execution.launch", LAUNCH, truth(pod(0, 1, 2), pod(1, 1, 2)), NOT_DONE),
    "launch: pods of the incarnation before": ("execution.launch", LAUNCH, truth(pod(0, 0), pod(1, 0)), NOT_DONE),
    "launch: no place any more": ("execution.launch", LAUNCH, truth(allocation=[]), UNKNOWN),
    "launch: job gone": ("execution.launch", LAUNCH, None, UNKNOWN),
    "stop: all told to end": ("execution.stop", STOP, truth(pod(0, deleting=True), pod(1, deleting=True)), DONE),
    "stop: none left": ("execution.stop", STOP, truth(), DONE),
    "stop: newer ones go on": ("execution.stop", STOP, truth(pod(0, 2), pod(1, 2)), DONE),
    "stop: one goes on": ("execution.stop", STOP, truth(pod(0, deleting=True), pod(1)), NOT_DONE),
    "stop: job gone": ("execution.stop", STOP, None, DONE),
    "reclaim: nothing left": ("execution.reclaim", "", truth(service=False), DONE),
    "reclaim: Service left": ("execution.reclaim", "", truth(), NOT_DONE),
    "reclaim: pod left": ("execution.reclaim", "", truth(pod(0), service=False), NOT_DONE),
    "reclaim: job gone": ("execution.reclaim", "", None, DONE),
    "commit: in the ledger": ("state.commit_checkpoint", COMMIT, truth(checkpoints=[ENTRY.wire()]), DONE),
    "commit: not in it": ("state.commit_checkpoint", COMMIT, truth(), NOT_DONE),
    "commit: another digest": (
        "state.commit_checkpoint", COMMIT, truth(checkpoints=[{**ENTRY.wire(), "digest": "cd" * 32}]), NOT_DONE,
    ),
    "commit: job gone": ("state.commit_checkpoint", COMMIT, None, UNKNOWN),
    "plan: leaves no mark": ("strategy.plan", "", truth(), NOT_DONE),
    "join: leaves no mark": ("execution.join", "", truth(), NOT_DONE),
    "exchange: the token may be out": ("interface.exchange", "", truth(), UNKNOWN),
    "not an operation of ours": ("policy.reload", "", None, UNKNOWN),
    "launch: record without its numbers": ("execution.launch", "", truth(*BOTH), UNKNOWN),
}  # fmt: skip


@pytest.mark.parametrize(("op", "detail", "facts", "expected"), CASES.values(), ids=CASES)
def test_truth(op: str, detail: str, facts: JobTruth | None, expected: tuple[Decision, str]) -> None:
    begun = intent(op, detail)
    found = result(begun, facts, NOW)
    assert (found.decision, found.reason) == expected
    same = {
        "stage": Stage.RESULT,
        "decision": found.decision,
        "reason": found.reason,
        "detail": found.detail,
        "ts": NOW,
    }
    assert found == begun.replace(**same)
    assert found.detail.startswith(detail)
    assert len(found.detail) > len(detail)


def test_every_probe_has_cases_both_ways() -> None:
    for op in PROBES:
        assert {expected for name, _, _, expected in CASES.values() if name == op} >= {DONE, NOT_DONE}
