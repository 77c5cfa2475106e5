"""Why a job does not run (or that it does), in numbers: what `kuangchao why` prints. Pure; reads what `decide` does."""

from typing import Annotated

from pydantic import Field

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.meta import ConditionStatus
from kuangchao_contracts.base import Contract
from kuangchao_contracts.names import CONTROLLER
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Phase, Reason
from kuangchao_operator.layers.execution.facts import as_waiting
from kuangchao_operator.layers.execution.model import PoolFacts
from kuangchao_operator.layers.execution.queue import Room, admit, order

MAX_LISTED = 10
NEXT: dict[str, str] = {
    Reason.POOL_NOT_FOUND: "create the ResourcePool, or delete the job and apply it to another one",
    Reason.POOL_EMPTY: "see the pool's node selector and `kubectl get resourcedescriptors`",
    Reason.WAITING_FOR_QUOTA: "wait, or lower spec.devices.count",
    Reason.TOPOLOGY_PLACEMENT_FAILED: "wait, or use a smaller spec.devices.perPod",
    Reason.EXCEEDS_MAX_QUOTA: "lower spec.devices.count or raise the pool's quota",
    Reason.RESTART_LIMIT_EXCEEDED: "mend the cause, then `kuangchao resume` for a new restart budget",
    Reason.SUSPENDED: "`kuangchao resume`, or set spec.suspend to false",
    Reason.REVOKED: "have it restored: `kuangchao token restore --job NAMESPACE/NAME`",
    Reason.IMAGE_PULL: "check spec.template.image and imagePullSecrets",
}
"""What the user can do, by reason; nothing where the message says it already."""


class Holding(Contract):
    """A job that has devices of the pool."""

    job: str
    devices: int


class Explanation(Contract):
    """The answer. Numbers are of this moment, while conditions keep those of their last change."""

    phase: Phase
    reason: str
    message: str
    pool: str
    need: int
    free: int | None = None
    total: int | None = None
    reserved: int | None = None
    quota: int | None = None
    position: int | None = None
    """Place in the pool's queue, from 1; None for a job that does not wait there."""
    ahead: Annotated[tuple[str, ...], Field(max_length=MAX_LISTED)] = ()
    holders: Annotated[tuple[Holding, ...], Field(max_length=MAX_LISTED)] = ()
    unhealthy: Annotated[tuple[str, ...], Field(max_length=MAX_LISTED)] = ()
    advice: str | None = None


def explain(job: TrainingJob, pool: PoolFacts | None) -> Explanation:
    """Why the job is where it is."""
    status = job.status
    phase = status.phase if status else Phase.PENDING
    reason, message = _ready(job)
    base = Explanation(
        phase=phase,
        reason=reason,
        message=message,
        pool=job.spec.pool,
        need=job.spec.devices.count,
        advice=NEXT.get(reason),
    )
    if pool is None:
        return base
    room = Room(pool, pool.claims)
    sizes = sorted(
        ((sum(s.devices for s in c.shares), f"{c.namespace}/{c.job}") for c in (*pool.claims, *pool.foreign)),
        reverse=True,
    )
    sick = [f"{n.node}: {device or 'node'} {why}" for n in pool.nodes for device, why in n.unhealthy]
    sick += [f"{n.node}: not ready" for n in pool.nodes if not n.ready]
    full = base.replace(
        free=room.free(job.spec.priority),
        total=room.total,
        reserved=room.reserved,
        quota=pool.spec.quota,
        holders=tuple(Holding(job=name, devices=count) for count, name in sizes[:MAX_LISTED]),
        unhealthy=tuple(sick[:MAX_LISTED]),
    )
    return _queued(full, job, pool) if phase is Phase.QUEUED else full


def _queued(base: Explanation, job: TrainingJob, pool: PoolFacts) -> Explanation:
    me = as_waiting(job)
    answer = admit(pool, me)
    ahead = sorted((w for w in pool.waiting if w.uid != me.uid and order(w) < order(me)), key=order)
    fresh = (
        {"reason": answer.reason, "message": answer.message, "advice": NEXT.get(answer.reason)} if answer.reason else {}
    )
    return base.replace(
        position=answer.position, ahead=tuple(f"{w.namespace}/{w.job}" for w in ahead[:MAX_LISTED]), **fresh
    )


def _ready(job: TrainingJob) -> tuple[str, str]:
    for condition in job.status.conditions if job.status else ():
        if condition.type == C.READY:
            unknown = condition.status is ConditionStatus.UNKNOWN
            return condition.reason, condition.message or ("not looked at yet" if unknown else "")
    owner = job.spec.managed_by
    if owner not in (None, CONTROLLER):
        return Reason.PENDING_EVALUATION, (
            f"spec.managedBy={owner!r} gives the job to another controller, and Kuangchao stands aside;"
            f" Kuangchao's own is {CONTROLLER!r}, or leave it out"
        )
    return Reason.PENDING_EVALUATION, (
        "the operator has not seen the job: it is not running, or does not serve namespace"
        f" {job.metadata.namespace} (jobNamespaces of the chart; `kuangchao doctor`)"
    )
