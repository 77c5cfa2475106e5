"""Suspension, by its user (spec.suspend, which we never write) or at the restart limit, and the way back.

A suspended job holds nothing and costs nothing. Its attempt is closed by counting up, so its tokens are dead at once.
"""

from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.layers.execution.draft import Draft
from kuangchao_operator.layers.execution.facts import Gang
from kuangchao_operator.layers.execution.release import release, terminating, unreserve


def grant_budget(draft: Draft) -> None:
    """A raised spec.retryGeneration gives a new restart budget and ends a suspension at the restart limit."""
    if draft.spec.retry_generation <= draft.status.retry_generation:
        return
    draft.update(
        retry_generation=draft.spec.retry_generation, restarts=0, infrastructure_restarts=0, restarts_without_progress=0
    )
    if _at_limit(draft):
        draft.set(C.SUSPENDED, True, Reason.SUSPENDED, "a new restart budget was granted")


def suspend(draft: Draft, reason: Reason, message: str) -> None:
    """Close the attempt and take the job out of its pool. Nothing of the plan is kept: the spec may change now."""
    begun = int(draft.status.attempt > 0)
    draft.update(
        attempt=draft.status.attempt + begun,
        incarnation=draft.status.incarnation + begun,
        attempt_time=draft.now,
        queued_time=None,
        admitted_time=None,
        start_time=None,
        plan_hash=None,
        plan_summary=None,
        plan_name=None,
        avoid_nodes=(),
        ready_pods=0,
    )
    draft.set(C.SUSPENDED, True, reason, message)
    draft.set(C.PLANNED, False, Reason.PENDING_EVALUATION)
    draft.set(C.RESTARTING, False, reason)
    unreserve(draft, reason)


def stays_suspended(draft: Draft, gang: Gang) -> bool:
    """Enter, keep or leave the suspended state; whether the job is suspended now."""
    if draft.spec.suspend and not draft.holds(C.SUSPENDED):
        suspend(draft, Reason.SUSPENDED, "spec.suspend is true")
    if not draft.holds(C.SUSPENDED):
        return False
    reason = Reason(draft.reason(C.SUSPENDED))
    freed = release(draft, gang, reason)
    if freed and not draft.spec.suspend and not _at_limit(draft):
        draft.set(C.SUSPENDED, False, Reason.RESUMED)
        draft.set(C.READY, "Unknown", Reason.PENDING_EVALUATION)
        draft.set(C.RECONCILING, True, Reason.PENDING_EVALUATION)
        draft.set(C.QUOTA_RESERVED, False, Reason.PENDING_EVALUATION)
        draft.emit(Reason.RESUMED, "planned again from the present spec")
        return False
    message = draft.conditions[C.SUSPENDED].message
    draft.set(C.READY, False, reason, message)
    draft.set(C.RECONCILING, not freed, reason, terminating(gang))
    draft.set(
        C.STALLED,
        _at_limit(draft),
        reason if _at_limit(draft) else Reason.AS_EXPECTED,
        message if _at_limit(draft) else "",
    )
    return True


def _at_limit(draft: Draft) -> bool:
    return draft.holds(C.SUSPENDED) and draft.reason(C.SUSPENDED) == Reason.RESTART_LIMIT_EXCEEDED
