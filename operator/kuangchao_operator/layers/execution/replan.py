"""Plans that did not fit at run time: what was measured stays in status, and the next plan is asked for with it. Pure.

Chooses no plan: strategy does, from the plan that failed and its measured peak. A plan that failed never comes again,
so there are only so many of them. Of a job that wants something else by now old figures say nothing.
"""

import hashlib
from typing import Final

from kuangchao_contracts.api.trainingjob import MAX_MEMORY_FAILURES, MemoryFailure
from kuangchao_contracts.descriptor import DeviceKind
from kuangchao_contracts.faults import FaultReport
from kuangchao_contracts.plan import Infeasible, ParallelPlan, PlanRequest
from kuangchao_contracts.ports.strategy import ReplanRequest
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Reason
from kuangchao_contracts.units import human_bytes
from kuangchao_operator.layers.execution.draft import Draft
from kuangchao_operator.layers.execution.model import Plan, Replan

MOST_WORDS: Final = 200


def wish(request: PlanRequest) -> str:
    """Digest of what a job wants, whatever nodes its pool has just now."""
    return request.replace(shapes=()).content_hash()


def in_force(draft: Draft, request: PlanRequest) -> tuple[MemoryFailure, ...]:
    """Failures that are about what the job wants now, oldest first."""
    if not draft.status.out_of_memory:
        return ()
    now = wish(request)
    return tuple(failure for failure in draft.status.out_of_memory if failure.wish == now)


def question(draft: Draft, request: PlanRequest) -> Plan | Replan:
    """What strategy is asked: the request, with the newest measured peak and the plan that it was measured under."""
    failures = in_force(draft, request)
    if not failures:
        return Plan(request=request)
    newest, previous = failures[-1], draft.snapshot.failed_plan
    measured = request.replace(measured_peak_bytes=newest.measured_bytes)
    if previous is None or previous.hash != newest.plan_hash:
        # somebody has deleted its object: the peak is taken for that of the first plan
        return Plan(request=measured)
    return Replan(request=ReplanRequest(previous=previous, request=measured))


def remember(draft: Draft, report: FaultReport, measured: int, request: PlanRequest) -> None:
    """Keep the peak of the plan that did not fit, and give the plan up."""
    status, plan = draft.status, draft.snapshot.plan
    failure = MemoryFailure(
        plan=words(plan) if plan is not None else status.plan_summary or "",
        plan_hash=status.plan_hash or "",
        wish=wish(request),
        measured_bytes=measured,
        estimated_bytes=report.estimated_peak_bytes,
        attempt=report.attempt,
        step=report.failures[0].step or 0,
    )
    kept = (*in_force(draft, request), failure)[-MAX_MEMORY_FAILURES:]
    draft.update(out_of_memory=kept, plan_hash=None, plan_summary=None, plan_name=None)
    draft.set(C.PLANNED, False, Reason.OUT_OF_MEMORY, f"{failure.plan}: {figures(failure)}")


def dead_end(failures: tuple[MemoryFailure, ...], plan: ParallelPlan | None, why: Infeasible | None) -> str:
    """Why there is no plan after those that failed; "" when there is one."""
    if plan is not None and words(plan) not in {failure.plan for failure in failures}:
        return ""
    newest = failures[-1]
    head = f"{newest.plan} ran out of memory at step {newest.step}: {figures(newest)}; no other plan is left"
    if why is None:
        return head
    nearest = f"; nearest legal {why.field}: {why.nearest}" if why.field and why.nearest else ""
    return f"{head}: {why.message}{nearest}"


def replaced(failures: tuple[MemoryFailure, ...], plan: ParallelPlan) -> str:
    """What a plan replaces and why, with both figures."""
    newest = failures[-1]
    return f"{words(plan)} in place of {newest.plan}, which ran out of memory at step {newest.step}: {figures(newest)}"


def figures(failure: MemoryFailure) -> str:
    """The measured peak beside the estimated one."""
    guess = "nothing was" if failure.estimated_bytes is None else f"{human_bytes(failure.estimated_bytes)} were"
    return f"measured peak {human_bytes(failure.measured_bytes)} where {guess} estimated"


def estimate(plan: ParallelPlan | None, kind: DeviceKind) -> int | None:
    """What a plan says that its fullest device needs, as it is measured there; None: it says nothing.

    In main memory that is the whole process, on a GPU what the allocator has given out.
    """
    whole, stages = kind is DeviceKind.CPU, plan.memory if plan is not None else ()
    return max((stage.reserved_bytes if whole else stage.total_bytes for stage in stages), default=None)


def words(plan: ParallelPlan) -> str:
    """A plan as a status has room for it, different for plans that do different things."""
    text = plan.words()
    if len(text) <= MOST_WORDS:
        return text
    return f"{text[:MOST_WORDS]}... {hashlib.sha256(text.encode()).hexdigest()[:12]}"
