"""An admitted job: plan recorded, pods launched, ranks watched, until it succeeds or a fault is handed to state."""

from kuangchao_contracts.api.trainingjob import HangAction
from kuangchao_contracts.faults import FaultReport
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.layers.execution import drain, faults, limits
from kuangchao_operator.layers.execution.admission import answered, note_plan, plan_request
from kuangchao_operator.layers.execution.draft import Draft
from kuangchao_operator.layers.execution.facts import Gang
from kuangchao_operator.layers.execution.finish import complete
from kuangchao_operator.layers.execution.model import Assess, Launch, RecordPlan, RenewTokens
from kuangchao_operator.layers.execution.progress import note_progress
from kuangchao_operator.layers.execution.recovery import apply
from kuangchao_operator.layers.execution.release import stop


def run(draft: Draft, gang: Gang) -> None:
    """One look at an admitted job."""
    if gang.succeeded(draft.spec.success_policy):
        note_progress(draft, gang, final=True)
        complete(draft, gang)
        return
    draft.wake(limits.TICK)
    report = faults.gather(
        draft.snapshot, gang, was_running=draft.holds(C.READY), pods_were_ready=draft.holds(C.PODS_READY)
    )
    if report is not None and drain.saves(report, draft.snapshot, gang):
        draft.update(ready_pods=gang.ready)
        draft.set(C.PODS_READY, False, report.reason, f"{gang.ready}/{gang.size} pods ready; the ranks save and end")
        note_progress(draft, gang)
        return
    if report is not None:
        _recover(draft, gang, report)
        return
    stop(draft, gang.old, Reason.WAIT_FOR_RECOVERY)
    if _plan_recorded(draft):
        _launch(draft, gang)
    _pods_ready(draft, gang)
    _ready(draft, gang)
    note_progress(draft, gang)
    _deadlines(draft, gang)


def _recover(draft: Draft, gang: Gang, report: FaultReport) -> None:
    """Hand the fault to state, and carry out what it says."""
    verdict = draft.snapshot.verdict
    if verdict is not None and draft.snapshot.verdict_attempt == gang.attempt:
        apply(draft, gang, report, verdict)
    else:
        draft.act(Assess(report=report))


def _plan_recorded(draft: Draft) -> bool:
    """See to it that the ParallelPlan object is there; False while strategy must be asked again after a crash."""
    recorded = draft.snapshot.plan
    if recorded is not None and recorded.hash == draft.status.plan_hash:
        return True
    plan = _planned_again(draft)
    if plan is None:
        return False
    if plan.hash != draft.status.plan_hash:
        note_plan(draft, plan)
    draft.act(RecordPlan(plan=plan))
    return True


def _planned_again(draft: Draft) -> ParallelPlan | None:
    pool, outcome = draft.snapshot.pool, draft.snapshot.outcome
    if outcome is not None and outcome.plan is not None and outcome.plan.hash == draft.status.plan_hash:
        return outcome.plan
    if pool is None or not pool.shapes:
        return None
    outcome = answered(draft, plan_request(draft, pool.shapes))
    return None if outcome is None else outcome.plan


def _launch(draft: Draft, gang: Gang) -> None:
    now = (draft.status.attempt, draft.status.incarnation)
    minted = draft.snapshot.tokens_minted_at
    if draft.snapshot.launched != now:
        if not gang.foreign and not gang.old:
            draft.act(Launch(attempt=now[0], incarnation=now[1]))
    elif minted is not None and (draft.now - minted).total_seconds() >= limits.TOKEN_RENEWAL:
        draft.act(RenewTokens(attempt=now[0], incarnation=now[1]))


def _pods_ready(draft: Draft, gang: Gang) -> None:
    again = draft.holds(C.RESTARTING)
    text = f"{gang.ready}/{gang.size} pods ready"
    draft.update(ready_pods=gang.ready, total_pods=gang.size)
    if gang.ready == gang.size:
        # once recovered, a job stays so until its next fault: the reason must not flip back when it runs
        seen = draft.holds(C.PODS_READY) and draft.reason(C.PODS_READY) == Reason.RECOVERED
        draft.set(C.PODS_READY, True, Reason.RECOVERED if again or seen else Reason.STARTED, text)
        return
    problem, words = faults.start_problem(draft.snapshot, gang)
    waiting = Reason.WAIT_FOR_RECOVERY if again else Reason.WAIT_FOR_START if gang.pods else Reason.ADMITTED
    draft.set(C.PODS_READY, False, problem or waiting, f"{text}; {words}")


def _ready(draft: Draft, gang: Gang) -> None:
    draft.set(C.STALLED, False, Reason.AS_EXPECTED)
    if gang.running or draft.holds(C.READY):
        hung = faults.hang(draft.snapshot, gang) if draft.spec.fault.on_hang is HangAction.OBSERVE else ""
        late = _tokens_late(draft)
        nodes = len(draft.status.allocation)
        text = f"{gang.ranks} ranks run on {nodes} node{'s' if nodes != 1 else ''}, attempt {gang.attempt}"
        draft.update(start_time=draft.status.start_time or draft.now)
        overdue = faults.lease_overdue(gang)
        reason = Reason.TOKENS_EXPIRING if late else Reason.HUNG if hung else Reason.RUNNING
        if reason is Reason.RUNNING and overdue:
            reason, text = Reason.LEASE_OVERDUE, f"{text}; {overdue}"
        if reason in (Reason.TOKENS_EXPIRING, Reason.LEASE_OVERDUE) and draft.reason(C.READY) != reason:
            draft.emit(reason, late or overdue, warning=True)
        draft.set(C.READY, True, reason, late or hung or text)
        draft.set(C.RECONCILING, False, Reason.RUNNING)
        if draft.holds(C.RESTARTING):
            draft.set(C.RESTARTING, False, Reason.RECOVERED, f"attempt {gang.attempt} runs")
        return
    pods = draft.conditions[C.PODS_READY]
    again = Reason.WAIT_FOR_RECOVERY if draft.holds(C.RESTARTING) else Reason.WAIT_FOR_START
    reason, text = (again, "ranks are starting") if draft.holds(C.PODS_READY) else (Reason(pods.reason), pods.message)
    draft.set(C.READY, False, reason, text)
    draft.set(C.RECONCILING, True, reason, text)


def _tokens_late(draft: Draft) -> str:
    """Said before agents are refused: their leases are old and could not be renewed. "" while all is well."""
    minted = draft.snapshot.tokens_minted_at
    if minted is None or (draft.now - minted).total_seconds() < limits.TOKENS_LATE:
        return ""
    return f"leases could not be renewed for {limits.TOKENS_LATE:g} s; agents are refused once they are 300 s old"


def _deadlines(draft: Draft, gang: Gang) -> None:
    """Wake for the next deadline, should it come before the next regular look."""
    start = draft.status.attempt_time
    if not gang.running and start is not None:
        draft.wake(draft.spec.start_deadline_seconds - (draft.now - start).total_seconds())
    for pod in gang.pods.values():
        if pod.node_lost_since is not None:
            draft.wake(draft.spec.fault.node_lost_seconds - (draft.now - pod.node_lost_since).total_seconds())
    if any(agent.first_exit_at for agent in gang.agents.values()):
        draft.wake(1.0)
