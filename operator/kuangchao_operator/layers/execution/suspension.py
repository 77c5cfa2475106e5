"""Suspension, by its user (spec.suspend, which we never write), at the restart limit or because the job's tokens are
revoked, and the way back.

A running job drains first: its pods are told to end while their attempt is still open, so that the ranks can save and
the agent of pod 0 can commit. Then, or when they have had their time, the attempt is closed by counting up, which
kills its tokens. A suspended job holds nothing and costs nothing.
"""

from datetime import datetime
from typing import Final

from kuangchao_contracts.names import REVOCATIONS
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.layers.execution.draft import Draft
from kuangchao_operator.layers.execution.facts import Gang, catching_up
from kuangchao_operator.layers.execution.launchspec import grace_seconds
from kuangchao_operator.layers.execution.progress import note_progress
from kuangchao_operator.layers.execution.release import drain_began, release, stop, terminating, unreserve

REVOKED: Final = (
    f"its tokens are revoked; it goes on in a new attempt when its key is gone from ConfigMap {REVOCATIONS}"
)


def grant_budget(draft: Draft) -> None:
    """A raised spec.retryGeneration gives a new restart budget and ends a suspension at the restart limit."""
    if draft.spec.retry_generation <= draft.status.retry_generation:
        return
    draft.update(
        retry_generation=draft.spec.retry_generation,
        restarts=0,
        infrastructure_restarts=0,
        restarts_without_progress=0,
        # who asks for a new budget has mended the cause, say by a higher memory limit
        out_of_memory=(),
    )
    if _at_limit(draft):
        draft.set(C.SUSPENDED, True, Reason.SUSPENDED, "a new restart budget was granted")


def suspend(draft: Draft, reason: Reason, message: str, *, since: datetime | None = None) -> None:
    """Close the attempt and take the job out of its pool. Nothing of the plan is kept: the spec may change now.

    `since`: when the pods were told to end, if that was earlier; their time to do so counts from then.
    """
    begun = int(draft.status.attempt > 0)
    draft.update(
        attempt=draft.status.attempt + begun,
        incarnation=draft.status.incarnation + begun,
        attempt_time=since or draft.now,
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
    """Enter, keep or leave the suspended state; whether the job is suspended now, or drains for it."""
    if not draft.holds(C.SUSPENDED):
        if not _suspending(draft, gang):
            return False
        if draft.snapshot.revoked:
            # what its ranks hold is worth nothing any more, so there is nothing that they could save
            suspend(draft, Reason.REVOKED, REVOKED)
        elif _drains(draft, gang):
            return True
        else:
            suspend(draft, Reason.SUSPENDED, "spec.suspend is true", since=drain_began(draft))
    reason = Reason(draft.reason(C.SUSPENDED))
    freed = release(draft, gang, reason)
    if freed and not draft.spec.suspend and not draft.snapshot.revoked and not _at_limit(draft):
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


def _suspending(draft: Draft, gang: Gang) -> bool:
    """Whether the job is to be suspended. Pods that were told to end do end, so a drain cannot be called off."""
    began = drain_began(draft)
    # a script that ends with 0 because it was told to has not done its work; a task says 143 then
    if draft.holds(C.ADMITTED) and (gang.managed or began is None) and gang.succeeded(draft.spec.success_policy):
        return False
    return draft.spec.suspend or draft.snapshot.revoked or began is not None


def _drains(draft: Draft, gang: Gang) -> bool:
    """Have the ranks of a running job save and end; False once they have, or have had the time for it."""
    pods, began = (*gang.pods.values(), *gang.old), drain_began(draft)
    if began is None:
        # as soon as an agent has ranks there may be steps to save: its next word on them is up to a second away;
        # an operator that has just started has not heard any
        if not (pods and draft.holds(C.ADMITTED) and (gang.reports or draft.holds(C.READY))):
            return False
        began = draft.now
        draft.update(attempt_time=began)
        draft.emit(Reason.SUSPENDING, "the ranks save and end")
    limit = max(draft.spec.fault.termination_seconds, grace_seconds(draft.job))
    # the last commit may have come while nobody could take it
    left = max(limit - (draft.now - began).total_seconds(), catching_up(draft.snapshot))
    if not pods or left <= 0:
        note_progress(draft, gang, final=True)
        return False
    _draining(draft, gang)
    note_progress(draft, gang)
    stop(draft, pods, Reason.SUSPENDING, drain=True)
    draft.wake(left)
    return True


def _draining(draft: Draft, gang: Gang) -> None:
    text = terminating(gang)
    draft.update(ready_pods=gang.ready)
    draft.set(C.SUSPENDED, False, Reason.SUSPENDING, "spec.suspend is true; the ranks save and end")
    draft.set(C.READY, False, Reason.SUSPENDING, text)
    draft.set(C.RECONCILING, True, Reason.SUSPENDING, text)
    draft.set(C.PODS_READY, False, Reason.SUSPENDING, text)


def _at_limit(draft: Draft) -> bool:
    return draft.holds(C.SUSPENDED) and draft.reason(C.SUSPENDED) == Reason.RESTART_LIMIT_EXCEEDED
