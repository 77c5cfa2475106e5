"""Synthetic trails: a quiet cluster, and records to put into it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from kuangchao_contracts.audit import AuditRecord, Decision, Stage
from kuangchao_operator.layers.governance.windows import LENGTH

START = datetime(2027, 1, 15, 8, tzinfo=UTC)
NS, JOB, UID = "team-a", "digits", "uid-1"
RESOURCE = f"{NS}/jobs/{JOB}"
AGENTS = tuple(f"agent:{NS}/{JOB}/w-0-{index}" for index in range(4))
GOVERNANCE = "layer:governance"
TRAIL = "_cluster/audit/records"
_number = iter(range(10**9))


def at(window: int, seconds: float = 0) -> datetime:
    """A moment of a window."""
    return START + window * LENGTH + timedelta(seconds=seconds)


def record(when: datetime, subject: str, op: str, **changes: Any) -> AuditRecord:
    """A call that was let through."""
    number = next(_number)
    values: dict[str, Any] = {
        "ts": when,
        "opid": f"{number:024x}",
        "stage": Stage.RESULT,
        "layer": op.partition(".")[0],
        "op": op,
        "resource": RESOURCE,
        "subject": subject,
        "job": JOB,
        "job_uid": UID,
        "attempt": 1,
        "decision": Decision.ALLOW,
    }
    return AuditRecord(**(values | changes))


def denied(when: datetime, subject: str, op: str, reason: str, **changes: Any) -> AuditRecord:
    return record(when, subject, op, stage=Stage.DENY, decision=Decision.DENY, reason=reason, **changes)


def queries(window: int, count: int) -> list[AuditRecord]:
    """Governance reading the trail so often."""
    about: dict[str, Any] = {"stage": Stage.READ, "resource": TRAIL, "job_uid": "-"}
    return [record(at(window, n * 290 / count), GOVERNANCE, "governance.query", **about) for n in range(count)]


def heartbeats(when: datetime, agent: str, count: int) -> AuditRecord:
    """As the sink counts step calls: one record a minute, without the token's claims."""
    return record(when, agent, "execution.heartbeat", stage=Stage.READ, count=count, job_uid="", attempt=0)


def quiet(windows: int) -> list[AuditRecord]:
    """A training job with heartbeats and commits, governance looking on, a refused stale call now and then."""
    found = [record(at(0), "layer:execution", "execution.launch")]
    for window in range(windows):
        found += queries(window, 20)
        for place, agent in enumerate(AGENTS):
            found += [heartbeats(at(window, 60 * n + place), agent, 57 + (n + place + window) % 6) for n in range(5)]
        found.append(record(at(window, 120), AGENTS[0], "state.commit_checkpoint"))
        if window % 3 == 0:
            found.append(denied(at(window, 121), AGENTS[1], "execution.heartbeat", "StaleEpoch"))
    return found
