"""Intake of API-server audit events, so that the trail names the person behind a kubectl command.

Delivery is at most once and the events may be incomplete: nothing is ever decided from them.
"""

from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kuangchao_contracts.audit import AuditRecord, AuditSink, Decision, Stage
from kuangchao_contracts.resources import CLUSTER
from kuangchao_contracts.text import recordable

MAX_EVENTS: Final = 10_000
MAX_REMEMBERED: Final = 65_536
FINAL_STAGES: Final = frozenset({"ResponseComplete", "Panic"})


class _Foreign(BaseModel):
    """Part of a Kubernetes object that we read; the rest is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class User(_Foreign):
    """Who, as the API server knows it."""

    username: str = ""


class ObjectRef(_Foreign):
    """What was acted on."""

    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class ResponseStatus(_Foreign):
    """How it ended."""

    code: int = 0


class Event(_Foreign):
    """audit.k8s.io/v1 Event."""

    auditID: Annotated[str, Field(max_length=128)]  # noqa: N815  # Kubernetes' own name
    stage: str = ""
    verb: str = ""
    user: User = User()
    impersonatedUser: User | None = None  # noqa: N815
    objectRef: ObjectRef | None = None  # noqa: N815
    responseStatus: ResponseStatus | None = None  # noqa: N815


class KubernetesIntake:
    """Turns event lists into records; an event that was seen before is skipped."""

    def __init__(self, sink: AuditSink, clock: Callable[[], float], process: str = "operator") -> None:
        self._sink, self._clock, self._process = sink, clock, process
        self._seen: OrderedDict[str, None] = OrderedDict()
        self.refused = 0

    def take(self, body: dict[str, Any]) -> int:
        """Records made from an EventList; what cannot be understood is counted in `refused`."""
        items = body.get("items")
        if not isinstance(items, list):
            self.refused += 1
            return 0
        self.refused += max(len(items) - MAX_EVENTS, 0)
        return sum(self._take_one(item) for item in items[:MAX_EVENTS])

    def _take_one(self, item: Any) -> bool:
        try:
            event = Event.model_validate(item)
            if event.stage not in FINAL_STAGES or not self._new(event.auditID):
                return False
            record = self._record(event)
        except ValidationError:
            self.refused += 1
            return False
        self._sink.best_effort(record)
        return True

    def _new(self, audit_id: str) -> bool:
        if audit_id in self._seen:
            return False
        self._seen[audit_id] = None
        if len(self._seen) > MAX_REMEMBERED:
            self._seen.popitem(last=False)
        return True

    def _record(self, event: Event) -> AuditRecord:
        target = event.objectRef or ObjectRef()
        parts = (target.namespace or CLUSTER, target.resource or "-", target.name or "-", target.subresource)
        code = event.responseStatus.code if event.responseStatus else 0
        behind = event.impersonatedUser
        return AuditRecord(
            ts=datetime.fromtimestamp(self._clock(), UTC),
            opid=recordable(event.auditID.replace("-", ""), 32),
            stage=Stage.READ if event.verb in {"get", "list", "watch"} else Stage.RESULT,
            layer="interface",
            op=recordable(f"kubernetes.{event.verb}", 64),
            resource=recordable("/".join(filter(None, parts)), 512),
            subject=recordable(f"user:{event.user.username}", 256),
            job=recordable(target.name, 253) if target.resource == "trainingjobs" else "",
            decision=_decision(code),
            reason=f"HTTP{code}" if code >= 400 else "",
            detail=recordable(f"acting as {behind.username}", 1_024) if behind else "",
            process=self._process,
        )


def _decision(code: int) -> Decision:
    if code in {401, 403}:
        return Decision.DENY
    return Decision.ALLOW if 100 <= code < 400 else Decision.ERROR
