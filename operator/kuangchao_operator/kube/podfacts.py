"""What the operator keeps of a pod: a few scalars instead of its body. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from kuangchao_contracts import names
from kuangchao_contracts.units import to_bytes
from kuangchao_operator.kube.writer import controller_uid
from kuangchao_operator.layers.execution.model import PodFact
from kuangchao_operator.layers.execution.overrides import OUR_CONTAINER

MAX_TEXT: Final = 4096
_PHASES: Final = ("Pending", "Running", "Succeeded", "Failed", "Unknown")


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod that bears our labels, whoever made it."""

    namespace: str
    uid: str
    job: str
    job_uid: str
    fact: PodFact
    account: str = ""
    exchanges: bool = False
    """Whether it gets its tokens by exchange, and not by a Secret."""


def pod_record(body: dict[str, Any]) -> PodRecord | None:
    """The record of a pod; None when its labels are not those of a pod of ours."""
    metadata = body["metadata"]
    labels = metadata.get("labels") or {}
    numbers = [_number(labels.get(key)) for key in (names.LABEL_POD_INDEX, names.LABEL_INCARNATION)]
    job_uid = labels.get(names.LABEL_JOB_UID)
    if not job_uid or numbers[0] is None or numbers[1] is None:
        return None
    fact = pod_fact(body, numbers[0], numbers[1], owned=controller_uid(body) == job_uid)
    return PodRecord(
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        job=labels.get(names.LABEL_JOB, ""),
        job_uid=job_uid,
        fact=fact,
        account=str((body.get("spec") or {}).get("serviceAccountName") or ""),
        exchanges=labels.get(names.LABEL_DELIVERY) == names.BY_EXCHANGE,
    )


def pod_fact(body: dict[str, Any], index: int, incarnation: int, *, owned: bool) -> PodFact:
    """The facts of one pod. Only the training's container counts; side-cars do not decide anything."""
    metadata, status = body["metadata"], body.get("status") or {}
    spec = body.get("spec") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    main = _container(status, OUR_CONTAINER)
    waiting = _waiting(status, main, conditions)
    ended = (main.get("state") or {}).get("terminated") or {}
    exit_reason = str(ended.get("reason") or status.get("reason") or "")[:256]
    return PodFact(
        name=metadata["name"],
        index=index,
        incarnation=incarnation,
        attempt=_number((metadata.get("labels") or {}).get(names.LABEL_ATTEMPT)) or 0,
        node=spec.get("nodeName"),
        phase=status.get("phase") if status.get("phase") in _PHASES else "Pending",
        ready=conditions.get("Ready", {}).get("status") == "True",
        deleting=bool(metadata.get("deletionTimestamp")),
        ends_by=_ends_by(metadata, spec, conditions),
        owned=owned,
        waiting_reason=waiting[0],
        waiting_message=waiting[1],
        sandbox_at=_since(conditions.get("PodReadyToStartContainers", {})),
        exit_code=ended.get("exitCode"),
        exit_reason=exit_reason,
        termination_message=str(ended.get("message") or status.get("message") or "")[:MAX_TEXT],
        memory_limit_bytes=_memory_limit(spec),
        finished_at=_time(ended.get("finishedAt")),
        disrupted=conditions.get("DisruptionTarget", {}).get("status") == "True",
    )


def _memory_limit(spec: dict[str, Any]) -> int | None:
    """Bytes that the training container may hold."""
    found = (c for c in spec.get("containers") or () if c.get("name") == OUR_CONTAINER)
    main: dict[str, Any] = next(found, {})
    limit = ((main.get("resources") or {}).get("limits") or {}).get("memory")
    return to_bytes(limit) if limit is not None else None


def _container(status: dict[str, Any], name: str) -> dict[str, Any]:
    found = (c for c in status.get("containerStatuses") or () if c.get("name") == name)
    return next(found, {})


def _since(condition: dict[str, Any]) -> datetime | None:
    return _time(condition.get("lastTransitionTime")) if condition.get("status") == "True" else None


def _waiting(status: dict[str, Any], main: dict[str, Any], conditions: dict[str, Any]) -> tuple[str, str]:
    """Why the training container does not run yet: its own state, an init container's, or the scheduler's word."""
    states = [main, *(status.get("initContainerStatuses") or ())]
    for state in states:
        waiting = (state.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            return str(waiting["reason"])[:256], str(waiting.get("message") or "")[:1024]
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return str(scheduled.get("reason") or "")[:256], str(scheduled.get("message") or "")[:1024]
    plain = (main.get("state") or {}).get("waiting") or {}
    return str(plain.get("reason") or "")[:256], str(plain.get("message") or "")[:1024]


def _ends_by(metadata: dict[str, Any], spec: dict[str, Any], conditions: dict[str, Any]) -> datetime | None:
    """When a pod that was told to end is killed. A deletionTimestamp is that time already, with the grace period in it;
    a kubelet that evicts does not delete the pod, and its condition has the time at which it began."""
    if metadata.get("deletionTimestamp"):
        return _time(metadata["deletionTimestamp"])
    disruption = conditions.get("DisruptionTarget", {})
    since = _time(disruption.get("lastTransitionTime")) if disruption.get("status") == "True" else None
    return since and since + timedelta(seconds=spec.get("terminationGracePeriodSeconds") or 0)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) <= 9 else None


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
