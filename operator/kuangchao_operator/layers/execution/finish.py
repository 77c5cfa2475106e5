"""The end of a job: success, failure, the time to live after it, and deletion. An ended job never runs again."""

from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.layers.execution.draft import Draft
from kuangchao_operator.layers.execution.facts import Gang
from kuangchao_operator.layers.execution.model import DeleteJob
from kuangchao_operator.layers.execution.release import drain_began, release, terminating, unreserve


def complete(draft: Draft, gang: Gang) -> None:
    """The success policy is met."""
    draft.update(completion_time=draft.now)
    draft.set(C.COMPLETE, True, Reason.SUCCEEDED, f"{gang.ranks} ranks, {draft.status.progress_text or 'done'}")
    draft.set(C.RESTARTING, False, Reason.AS_EXPECTED)
    _close(draft, gang, Reason.SUCCEEDED)


def fail(draft: Draft, gang: Gang, reason: Reason, message: str) -> None:
    """The job has failed for good."""
    draft.update(completion_time=draft.now)
    draft.set(C.FAILED, True, reason, message)
    draft.set(C.RESTARTING, False, reason)
    _close(draft, gang, reason)


def _close(draft: Draft, gang: Gang, reason: Reason) -> None:
    unreserve(draft, reason)
    if drain_began(draft) is not None:
        draft.set(C.SUSPENDED, False, Reason.AS_EXPECTED)
    freed = release(draft, gang, reason)
    summarise(draft, "" if freed else terminating(gang))


def ended(draft: Draft, gang: Gang) -> None:
    """Free what an ended job still holds, then wait for its time to live."""
    failed = draft.holds(C.FAILED)
    freed = release(draft, gang, Reason(draft.reason(C.FAILED if failed else C.COMPLETE)))
    ttl, end = draft.spec.ttl_seconds_after_finished, draft.status.completion_time
    if freed and ttl is not None and end is not None:
        left = ttl - (draft.now - end).total_seconds()
        if left <= 0:
            draft.act(DeleteJob())
        draft.wake(max(left, 5.0) if left <= 0 else left)
    summarise(draft, "" if freed else terminating(gang))


def deleted(draft: Draft, gang: Gang) -> None:
    """The object is being deleted: nothing of it may be left behind. What is gone already is success."""
    if release(draft, gang, Reason.SUSPENDED) or draft.holds(C.FAILED) or draft.holds(C.COMPLETE):
        return
    draft.set(C.SUSPENDED, False, Reason.SUSPENDING, "the job is being deleted")
    draft.set(C.RESTARTING, False, Reason.AS_EXPECTED)
    draft.set(C.READY, False, Reason.SUSPENDING, f"the job is being deleted; {terminating(gang)}".rstrip("; "))


def summarise(draft: Draft, left: str) -> None:
    """Ready, Reconciling and Stalled of an ended job, as kstatus reads them; `left` is what still holds devices."""
    failed = draft.conditions[C.FAILED]
    if draft.holds(C.FAILED):
        reason = Reason(failed.reason)
        draft.set(C.READY, False, reason, failed.message)
        draft.set(C.STALLED, True, reason, failed.message)
    else:
        reason = Reason.SUCCEEDED
        draft.set(C.READY, True, reason, draft.conditions[C.COMPLETE].message)
        draft.set(C.STALLED, False, Reason.AS_EXPECTED)
    draft.set(C.RECONCILING, bool(left), reason, left)
