"""Carries out the state layer's verdict on a fault. The attempt counts up in the status before anything is removed."""

from kuangchao_contracts.faults import FaultDecision, FaultReport, Recovery
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.layers.execution.admission import plan_request
from kuangchao_operator.layers.execution.draft import Draft
from kuangchao_operator.layers.execution.facts import Gang
from kuangchao_operator.layers.execution.finish import fail
from kuangchao_operator.layers.execution.release import unreserve
from kuangchao_operator.layers.execution.replan import remember
from kuangchao_operator.layers.execution.suspension import suspend

MAX_AVOIDED = 64


def apply(draft: Draft, gang: Gang, report: FaultReport, verdict: FaultDecision) -> None:
    """Store the failure and do what was decided."""
    _record(draft, report)
    if verdict.recovery is Recovery.FAIL:
        fail(draft, gang, verdict.reason, verdict.message)
    elif verdict.recovery is Recovery.SUSPEND:
        suspend(draft, verdict.reason, verdict.message)
    else:
        if verdict.recovery is Recovery.REPLAN:
            remember(draft, report, verdict.measured_peak_bytes or 0, plan_request(draft, ()))
        _restart(draft, verdict)


def _record(draft: Draft, report: FaultReport) -> None:
    failure, last = report.failures[0], draft.status.last_failure
    gained = last is None or (failure.step or 0) > (last.step or 0)
    stuck = 0 if gained else draft.status.restarts_without_progress + 1
    draft.update(
        last_failure=failure, first_failure=draft.status.first_failure or failure, restarts_without_progress=stuck
    )


def _restart(draft: Draft, verdict: FaultDecision) -> None:
    # another plan may place ranks otherwise, and what a container held at most is counted while it lives
    status, anew = draft.status, verdict.recovery in (Recovery.NEW_PODS, Recovery.REPLAN)
    avoid = tuple(dict.fromkeys((*status.avoid_nodes, *verdict.avoid_nodes)))[-MAX_AVOIDED:]
    draft.update(
        attempt=status.attempt + 1,
        incarnation=status.incarnation + int(anew),
        attempt_time=draft.now,
        avoid_nodes=avoid,
        restarts=status.restarts + int(verdict.charged),
        infrastructure_restarts=status.infrastructure_restarts + int(not verdict.charged),
    )
    if draft.holds(C.RESTARTING):  # no transition, but another restart all the same
        draft.emit(verdict.reason, verdict.message, warning=True)
    draft.set(C.RESTARTING, True, verdict.reason, verdict.message)
    draft.set(C.READY, False, verdict.reason, verdict.message)
    draft.set(C.RECONCILING, True, verdict.reason, verdict.message)
    if anew:
        # the reservation itself stays until the old pods are gone, then the whole gang is placed anew
        draft.update(ready_pods=0)
        unreserve(draft, Reason.WAIT_FOR_RECOVERY)
