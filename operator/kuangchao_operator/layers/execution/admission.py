"""From the spec to a reservation: validate, find the pool, plan, queue, reserve the whole gang in one status write.

A job that cannot go on says why and holds nothing; it is looked at again when the facts that it lacks change, so
waiting costs no writes, and no timers save for a missing storage claim, which nothing tells of.
"""

from kuangchao_contracts import names
from kuangchao_contracts.api.trainingjob import Priority
from kuangchao_contracts.plan import DeviceShape, ParallelPlan, PlanOutcome, PlanRequest
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.layers.execution import limits, replan
from kuangchao_operator.layers.execution.draft import Draft
from kuangchao_operator.layers.execution.facts import Gang, as_waiting
from kuangchao_operator.layers.execution.finish import fail
from kuangchao_operator.layers.execution.model import PoolFacts
from kuangchao_operator.layers.execution.queue import Admission, admit, ceiling
from kuangchao_operator.layers.execution.release import stop, terminating
from kuangchao_operator.layers.execution.validate import refusal

ABOUT_POOL = frozenset({Reason.POOL_NOT_FOUND, Reason.EXCEEDS_MAX_QUOTA})
ABOUT_PLAN = frozenset({Reason.INFEASIBLE, Reason.CONTRADICTORY_PLAN, Reason.INVALID_SPEC})


def seek(draft: Draft, gang: Gang) -> None:
    """Bring a job that holds no right to devices as far towards one as the facts allow."""
    if gang.pods or gang.old:
        # a recovering gang: all of the old attempt ends before any of the new one starts
        stop(draft, (*gang.pods.values(), *gang.old), Reason.WAIT_FOR_RECOVERY)
        _waits(draft, Reason.WAIT_FOR_RECOVERY, terminating(gang))
        return
    problem = refusal(draft.job, draft.snapshot.release_namespace) or _pool_problem(draft) or _storage_problem(draft)
    if problem is not None:
        _refuse(draft, *problem)
        if problem[0] is Reason.STORAGE_NOT_FOUND:
            draft.wake(limits.CLAIM_RETRY)
        return
    pool = draft.snapshot.pool
    assert pool is not None
    if not pool.shapes:
        _queued(draft, Admission(reason=Reason.POOL_EMPTY, message=f"pool {pool.name} has no usable node"))
        return
    plan = plan_for(draft, gang, pool)
    if plan is not None:
        _admit(draft, pool, plan)


def plan_request(draft: Draft, shapes: tuple[DeviceShape, ...]) -> PlanRequest:
    """What strategy is asked: the spec and the pool's shape, never what is free just now."""
    spec = draft.spec
    return PlanRequest(
        devices=spec.devices.count,
        per_pod=spec.devices.per_pod,
        shapes=shapes,
        model=spec.model,
        training=spec.training,
        parallelism=spec.parallelism,
        managed=spec.task is not None,
        plugged=bool(spec.plugins),
    )


def plan_for(draft: Draft, gang: Gang, pool: PoolFacts) -> ParallelPlan | None:
    """The plan to reserve for; None: strategy must be asked first, or said no. A recovering job keeps its plan."""
    kept = draft.snapshot.plan
    if draft.holds(C.RESTARTING) and kept is not None and kept.hash == draft.status.plan_hash:
        return kept
    request = plan_request(draft, pool.shapes)
    outcome = answered(draft, request)
    if outcome is None:
        return None
    failures, why = replan.in_force(draft, request), outcome.infeasible
    end = replan.dead_end(failures, outcome.plan, why) if failures else ""
    if end and draft.holds(C.RESTARTING) and draft.reason(C.RESTARTING) == Reason.OUT_OF_MEMORY:
        fail(draft, gang, Reason.OUT_OF_MEMORY, end)
    elif end:
        _refuse(draft, Reason.INFEASIBLE, end)
    elif why is not None:
        _refuse(draft, Reason(why.reason), why.message)
    return None if end else outcome.plan


def answered(draft: Draft, request: PlanRequest) -> PlanOutcome | None:
    """What strategy says to a request; None: it is asked now."""
    asked = replan.question(draft, request)
    if draft.snapshot.outcome is not None and draft.snapshot.outcome_digest == asked.request.content_hash():
        return draft.snapshot.outcome
    draft.act(asked)
    draft.wake(limits.TICK)
    return None


def note_plan(draft: Draft, plan: ParallelPlan) -> None:
    """Hash and summary of the plan go into status; the object itself is made at admission."""
    name = names.plan_name(draft.job.metadata.name, draft.job.metadata.uid, plan.hash)
    draft.update(plan_hash=plan.hash, plan_summary=plan.summary(), plan_name=name, total_pods=plan.pods)
    reason = Reason.PLANNED if plan.memory_checked else Reason.PLANNED_WITHOUT_MEMORY_CHECK
    text = "" if plan.memory_checked else "; memory was not checked"
    failures = replan.in_force(draft, plan_request(draft, ()))
    if failures:
        reason, text = Reason.REPLANNED, f"{text}; {replan.replaced(failures, plan)}"
    draft.set(C.PLANNED, True, reason, f"{plan.summary()} on {plan.world_size} ranks in {plan.pods} pods{text}")


def _pool_problem(draft: Draft) -> tuple[Reason, str] | None:
    pool, spec = draft.snapshot.pool, draft.spec
    if pool is None:
        return Reason.POOL_NOT_FOUND, f"spec.pool={spec.pool!r}: there is no such ResourcePool"
    if pool.deleting:
        return Reason.POOL_NOT_FOUND, f"spec.pool={spec.pool!r}: the ResourcePool is being deleted"
    kind = pool.spec.device_type
    if spec.devices.type is not None and spec.devices.type is not kind:
        return (
            Reason.INVALID_SPEC,
            f"spec.devices.type={spec.devices.type.value!r}: pool {pool.name} has {kind.value} devices",
        )
    most = ceiling(pool, spec.priority)
    if pool.nodes and spec.devices.count > most:
        share = f" (debug share {pool.spec.debug_share_percent} %)" if spec.priority is Priority.DEBUG else ""
        return Reason.EXCEEDS_MAX_QUOTA, (
            f"spec.devices.count={spec.devices.count}: pool {pool.name} gives a"
            f" {spec.priority.value} job at most {most} devices{share}"
        )
    return None


def _storage_problem(draft: Draft) -> tuple[Reason, str] | None:
    snapshot = draft.snapshot
    if snapshot.storage_problem is None:
        return None
    return snapshot.storage_reason or Reason.STORAGE_NOT_FOUND, snapshot.storage_problem


def _refuse(draft: Draft, reason: Reason, message: str) -> None:
    """The job cannot run as things are. It is stalled until the spec or the missing fact changes; no loop, no timer."""
    draft.update(allocation=())
    draft.released = True
    draft.set(C.STALLED, True, reason, message)
    draft.set(C.READY, False, reason, message)
    draft.set(C.RECONCILING, False, reason)
    about_pool = reason in ABOUT_POOL
    draft.set(
        C.QUOTA_RESERVED, False, reason if about_pool else Reason.PENDING_EVALUATION, message if about_pool else ""
    )
    if reason in ABOUT_PLAN:
        draft.update(plan_hash=None, plan_summary=None, plan_name=None)
        draft.set(C.PLANNED, False, reason, message)


def _admit(draft: Draft, pool: PoolFacts, plan: ParallelPlan) -> None:
    note_plan(draft, plan)
    waiting = as_waiting(draft.job.model_copy(update={"status": draft.status}))
    answer = admit(pool, waiting.replace(together=plan.pods_together))
    if not answer.allocation:
        _queued(draft, answer)
        return
    nodes = len(answer.allocation)
    text = f"{plan.world_size} devices on {nodes} node{'s' if nodes > 1 else ''} of pool {pool.name}"
    again = draft.holds(C.RESTARTING)
    draft.update(
        allocation=answer.allocation,
        attempt=max(draft.status.attempt, 1),
        ready_pods=0,
        admitted_time=draft.now,
        attempt_time=draft.now,
        queued_time=draft.status.queued_time or draft.now,
    )
    draft.set(C.QUOTA_RESERVED, True, Reason.QUOTA_RESERVED, text)
    draft.set(C.ADMITTED, True, Reason.ADMITTED, text)
    draft.set(C.PODS_READY, False, Reason.WAIT_FOR_RECOVERY if again else Reason.ADMITTED)
    draft.set(C.STALLED, False, Reason.AS_EXPECTED)


def _queued(draft: Draft, answer: Admission) -> None:
    assert answer.reason is not None
    draft.update(allocation=(), queued_time=draft.status.queued_time or draft.now)
    draft.released = True
    draft.set(C.QUOTA_RESERVED, False, answer.reason, answer.message)
    _waits(draft, answer.reason, answer.message)


def _waits(draft: Draft, reason: Reason, message: str) -> None:
    draft.set(C.STALLED, False, Reason.AS_EXPECTED)
    draft.set(C.READY, False, reason, message)
    draft.set(C.RECONCILING, True, reason, message)
