"""The life cycle of a job as one pure function: everything known of it in, the wanted status and the actions out.

Level-triggered: nothing depends on which event came last, so a lost or doubled event, a restart of the operator and a
late watch all end in the same place. Never reads a clock, never does I/O.
"""

from typing import Final

from kuangchao_contracts.names import CONTROLLER
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.layers.execution import finish
from kuangchao_operator.layers.execution.admission import seek
from kuangchao_operator.layers.execution.draft import Draft
from kuangchao_operator.layers.execution.facts import Gang, gang
from kuangchao_operator.layers.execution.model import Action, Decision, Emit, JobSnapshot
from kuangchao_operator.layers.execution.running import run
from kuangchao_operator.layers.execution.suspension import grant_budget, stays_suspended

MAX_PASSES: Final = 8
"""A decision settles in two or three passes; more means that two rules fight, which is an error of ours."""
UNMANAGED: Final = (
    "command jobs start their own process groups: no memory check, no checkpoints by the operator, hang"
    " detection only for scripts that report progress, data-parallel layout only"
)


def decide(snapshot: JobSnapshot) -> Decision:
    """What the job's status should be, and what should be done once it is stored.

    The rules are applied to their own result until nothing changes, so a second call on unchanged facts is quiet.
    """
    stored, events = None, list[Action]()
    for _ in range(MAX_PASSES):
        decision = _look(snapshot)
        events += [a for a in decision.actions if isinstance(a, Emit)]
        if decision.status is None:
            rest = tuple(a for a in decision.actions if not isinstance(a, Emit))
            return decision.model_copy(update={"status": stored, "actions": (*events, *rest)})
        stored = decision.status
        snapshot = snapshot.model_copy(update={"job": snapshot.job.model_copy(update={"status": stored})})
    raise AssertionError(f"no stable decision for {snapshot.job.metadata.namespace}/{snapshot.job.metadata.name}")


def _look(snapshot: JobSnapshot) -> Decision:
    """One pass of the rules; the first one that applies takes the job."""
    job = snapshot.job
    if job.spec.managed_by not in (None, CONTROLLER):
        return Decision(status=None, released=True)
    draft, pods = Draft(snapshot), gang(snapshot)
    if job.metadata.deletion_timestamp is not None:
        finish.deleted(draft, pods)
        return draft.finish()
    _unmanaged(draft)
    if draft.holds(C.COMPLETE) or draft.holds(C.FAILED):
        finish.ended(draft, pods)
        return draft.finish()
    grant_budget(draft)
    if _out_of_time(draft):
        limit = draft.spec.active_deadline_seconds
        finish.fail(draft, pods, Reason.DEADLINE_EXCEEDED, f"activeDeadlineSeconds={limit}: the job ran for longer")
    elif not stays_suspended(draft, pods):
        _progress(draft, pods)
    return draft.finish()


def _progress(draft: Draft, pods: Gang) -> None:
    if draft.holds(C.ADMITTED):
        run(draft, pods)
    else:
        seek(draft, pods)


def _unmanaged(draft: Draft) -> None:
    if draft.spec.command is not None:
        draft.set(C.UNMANAGED, True, Reason.LAYOUT_UNMANAGED, UNMANAGED)
    else:
        draft.set(C.UNMANAGED, False, Reason.AS_EXPECTED)


def _out_of_time(draft: Draft) -> bool:
    """Whether the job is past its active deadline, which counts from its first running rank since it was resumed."""
    limit, start = draft.spec.active_deadline_seconds, draft.status.start_time
    if limit is None or start is None or draft.holds(C.SUSPENDED) or draft.spec.suspend:
        return False
    left = limit - (draft.now - start).total_seconds()
    draft.wake(left)
    return left <= 0
