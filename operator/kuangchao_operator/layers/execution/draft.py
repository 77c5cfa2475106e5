"""The decision while it is being made: the wanted status, the conditions, the actions and when to look again.

Only this file turns all that into a Decision, so the derived parts (phase, columns, observed generation, the order of
conditions, no write without a change) are the same on every path.
"""

from typing import Any, Final

from kuangchao_contracts.api.meta import Condition, ConditionStatus
from kuangchao_contracts.api.trainingjob import TrainingJobStatus
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.layers.execution import limits
from kuangchao_operator.layers.execution.model import Action, Decision, Emit, JobSnapshot
from kuangchao_operator.layers.execution.phase import phase

ORDER: Final = {kind.value: place for place, kind in enumerate(C)}
ANNOUNCED: Final = {
    C.STALLED: "Warning",
    C.FAILED: "Warning",
    C.RESTARTING: "Warning",
    C.PLANNED: "Normal",
    C.ADMITTED: "Normal",
    C.SUSPENDED: "Normal",
    C.COMPLETE: "Normal",
}
"""Conditions whose turn to True is an Event; Ready is one too, when it says Running."""
INITIAL: Final[dict[C, tuple[str, Reason]]] = {
    C.READY: ("Unknown", Reason.PENDING_EVALUATION),
    C.RECONCILING: ("True", Reason.PENDING_EVALUATION),
    C.STALLED: ("False", Reason.AS_EXPECTED),
    C.PLANNED: ("False", Reason.PENDING_EVALUATION),
    C.QUOTA_RESERVED: ("False", Reason.PENDING_EVALUATION),
    C.ADMITTED: ("False", Reason.NO_RESERVATION),
    C.PODS_READY: ("False", Reason.NO_RESERVATION),
    C.RESTARTING: ("False", Reason.AS_EXPECTED),
    C.SUSPENDED: ("False", Reason.AS_EXPECTED),
    C.COMPLETE: ("False", Reason.PENDING_EVALUATION),
    C.FAILED: ("False", Reason.AS_EXPECTED),
}
"""Every condition is there from the first write, so that nobody ever waits on one that is missing. Ready is Unknown and
Reconciling True, because kstatus takes a missing Ready for success."""


class Draft:
    """A decision in the making for one snapshot."""

    def __init__(self, snapshot: JobSnapshot) -> None:
        self.snapshot, self.job, self.spec, self.now = snapshot, snapshot.job, snapshot.job.spec, snapshot.now
        self.before = snapshot.job.status
        self.status = snapshot.job.status or TrainingJobStatus(retry_generation=self.spec.retry_generation)
        self.conditions = {c.type: c for c in self.status.conditions}
        self.actions: list[Action] = []
        self.released = False
        self._wake: float | None = None
        for kind, (value, reason) in INITIAL.items():
            if kind not in self.conditions:
                self.set(kind, value, reason)

    def update(self, **changes: Any) -> None:
        """Change fields of the wanted status."""
        self.status = self.status.model_copy(update=changes)

    def holds(self, kind: C) -> bool:
        """Whether a condition is True."""
        return self.conditions[kind].status is ConditionStatus.TRUE

    def reason(self, kind: C) -> str:
        """Reason of a condition."""
        return self.conditions[kind].reason

    def set(self, kind: C, value: str | bool, reason: Reason, message: str = "") -> None:
        """Set a condition; its transition time moves only when its status does. Announces the transition."""
        status = ConditionStatus(str(value))
        old = self.conditions.get(kind)
        moved = old is None or old.status is not status
        self.conditions[kind] = Condition(
            type=kind,
            status=status,
            reason=reason,
            message=message[:4096],
            last_transition_time=self.now if old is None or moved else old.last_transition_time,
        )
        if moved and status is ConditionStatus.TRUE and (kind in ANNOUNCED or reason is Reason.RUNNING):
            self.emit(reason, message, warning=ANNOUNCED.get(kind) == "Warning")

    def emit(self, reason: Reason, message: str, *, warning: bool = False) -> None:
        """Announce something that goes with this status; what several conditions say alike is said once."""
        event = Emit(type="Warning" if warning else "Normal", reason=reason, message=message[:1024])
        if event not in self.actions:
            self.actions.append(event)

    def act(self, *actions: Action) -> None:
        """Ask for actions, in order."""
        self.actions.extend(actions)

    def wake(self, seconds: float) -> None:
        """Look again after this time at the latest."""
        seconds = max(seconds, limits.MIN_WAKE)
        self._wake = seconds if self._wake is None else min(self._wake, seconds)

    def finish(self) -> Decision:
        """The decision. A status equal to the stored one is not written."""
        generation = self.job.metadata.generation
        ordered = sorted(self.conditions.values(), key=lambda c: ORDER[c.type])
        spent, devices = self.status.restarts, self.spec.devices
        self.update(
            observed_generation=generation,
            conditions=tuple(c.model_copy(update={"observed_generation": generation}) for c in ordered),
            phase=phase(self.conditions),
            ready=f"{self.status.ready_pods}/{self.status.total_pods or devices.count // devices.per_pod}",
            restart_budget=f"{spent}/{self.spec.fault.max_restarts}",
        )
        changed = self.before is None or self.status != self.before
        status = TrainingJobStatus.model_validate(dict(self.status)) if changed else None
        events = tuple(self.actions) if changed else tuple(a for a in self.actions if not isinstance(a, Emit))
        return Decision(status=status, actions=events, wake_after_seconds=self._wake, released=self.released)
