"""How a job gives back what it holds: pods stopped, the rest reclaimed, and only then the reservation let go."""

from datetime import datetime

from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.layers.execution import limits
from kuangchao_operator.layers.execution.draft import Draft
from kuangchao_operator.layers.execution.facts import Gang
from kuangchao_operator.layers.execution.model import PodFact, Reclaim, Stop


def stop(draft: Draft, pods: tuple[PodFact, ...], reason: Reason, message: str = "", *, drain: bool = False) -> None:
    """Ask that these pods end; harder for pods whose node is gone or that outran fault.terminationSeconds.

    Pods of a revoked job get no time: they have nothing to save, and what they run may be what the job was revoked for.
    `drain`: their attempt is still open, so that they can commit a last checkpoint.
    """
    if not pods:
        return
    late, revoked = not drain and _late(draft), reason is Reason.REVOKED
    force = tuple(sorted(p.name for p in pods if _lost(draft, p)))
    overdue = tuple(sorted(p.name for p in pods if (revoked or (late and p.deleting)) and p.name not in force))
    draft.wake(limits.TICK)
    if not force and not overdue and all(p.deleting for p in pods):
        return
    wanted = Stop(
        incarnation=max(p.incarnation for p in pods),
        reason=reason,
        message=message,
        force=force,
        overdue=overdue,
        drain=drain,
    )
    done = draft.snapshot.stop_done
    if done is None or done.stop != wanted or (draft.now - done.at).total_seconds() >= limits.REPEAT:
        draft.act(wanted)


def release(draft: Draft, gang: Gang, reason: Reason) -> bool:
    """Drive a job that must hold nothing towards that; True once it is so.

    The reservation is dropped last: devices go to others only when the pods are gone from the API.
    """
    pods = (*gang.pods.values(), *gang.old)
    stop(draft, pods, reason)
    if draft.status.allocation and not draft.snapshot.reclaimed:
        draft.act(Reclaim())
        draft.wake(limits.TICK)
    elif draft.status.allocation and not pods:
        draft.update(allocation=())
    draft.released = not draft.status.allocation and not pods
    return draft.released


def unreserve(draft: Draft, reason: Reason, message: str = "") -> None:
    """Conditions of a job that has no right to devices any more."""
    draft.set(C.QUOTA_RESERVED, False, reason, message)
    draft.set(C.ADMITTED, False, Reason.NO_RESERVATION)
    draft.set(C.PODS_READY, False, Reason.NO_RESERVATION)


def drain_began(draft: Draft) -> datetime | None:
    """Since when a job drains before it is suspended; None: it does not. All that is left of its attempt is to end, so
    the attempt's time counts from there."""
    return draft.status.attempt_time if draft.reason(C.SUSPENDED) == Reason.SUSPENDING else None


def terminating(gang: Gang) -> str:
    """What a job that gives back its devices still waits for; "" for nothing."""
    left = len(gang.pods) + len(gang.old)
    return f"waiting for {left} terminating pods" if left else ""


def _lost(draft: Draft, pod: PodFact) -> bool:
    since = pod.node_lost_since
    return since is not None and (draft.now - since).total_seconds() >= draft.spec.fault.node_lost_seconds


def _late(draft: Draft) -> bool:
    since = draft.status.completion_time or draft.status.attempt_time
    return since is not None and (draft.now - since).total_seconds() > draft.spec.fault.termination_seconds
