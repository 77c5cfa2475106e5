"""Admission: whether a job gets its whole gang now, or why not, in numbers. Pure; the caller holds the pool's lock.

Order is priority, then age. StrictFIFO: nobody overtakes. BestEffortFIFO: a job that does not fit now is passed by
later ones that do. Debug jobs together never hold more than the pool's debug share.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kuangchao_contracts.api.resourcepool import Queueing
from kuangchao_contracts.api.trainingjob import NodeShare, Priority
from kuangchao_contracts.descriptor import DeviceKind
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.layers.execution.limits import EXPLAINED_POSITIONS
from kuangchao_operator.layers.execution.model import Claim, PoolFacts, Waiting
from kuangchao_operator.layers.execution.placement import Gang, place


@dataclass(frozen=True, slots=True)
class Admission:
    """Either an allocation, or a reason and a message. `position` counts from 1 in the pool's queue."""

    allocation: tuple[NodeShare, ...] = ()
    reason: Reason | None = None
    message: str = ""
    position: int = 1


class Room:
    """Free devices of a pool, by node and in all, with the claims of some jobs taken off."""

    def __init__(self, pool: PoolFacts, claims: Iterable[Claim]) -> None:
        self.pool = pool
        self.total = sum(n.devices for n in pool.nodes)
        self.limit = self.total if pool.spec.quota is None else min(pool.spec.quota, self.total)
        self.debug_limit = self.limit * pool.spec.debug_share_percent // 100
        self.nodes = {n.node: n.devices if n.ready else 0 for n in pool.nodes}
        self.reserved = self.debug_reserved = 0
        for claim in pool.foreign:
            for share in claim.shares:
                self._take(share)
        for claim in claims:
            self.take(claim.priority, claim.shares)

    def take(self, priority: Priority, shares: Iterable[NodeShare]) -> None:
        """Take shares off. A node that has lost devices under running pods has 0 free, never less."""
        for share in shares:
            self._take(share)
            self.reserved += share.devices
            self.debug_reserved += share.devices if priority is Priority.DEBUG else 0

    def _take(self, share: NodeShare) -> None:
        self.nodes[share.node] = max(0, self.nodes.get(share.node, 0) - share.devices)

    def free(self, priority: Priority) -> int:
        """Devices that a job of this priority could get in all, wherever they are."""
        free = min(sum(self.nodes.values()), self.limit - self.reserved)
        return max(0, free if priority is not Priority.DEBUG else min(free, self.debug_limit - self.debug_reserved))

    def fit(self, job: Waiting) -> tuple[NodeShare, ...] | None:
        """Shares for the whole gang of a job, or None."""
        if job.devices > self.free(job.priority):
            return None
        gang = Gang(job.devices // job.per_pod, job.per_pod, job.together)
        spread = self.pool.spec.device_type is DeviceKind.CPU
        return place(self.nodes, gang, spread=spread, avoid=frozenset(job.avoid_nodes))


def order(job: Waiting) -> tuple[int, float, str, str, str]:
    """Sort key of the queue: production before debug, older before younger.

    Jobs of one second, the API server's resolution, go by name: those of one file mostly in the order of the file.
    """
    late = 0 if job.priority is Priority.PRODUCTION else 1
    return (late, job.created.timestamp(), job.namespace, job.job, job.uid)


def ceiling(pool: PoolFacts, priority: Priority) -> int:
    """The most devices that a job of this priority could ever have in the pool as it is."""
    room = Room(pool, ())
    return room.limit if priority is Priority.PRODUCTION else room.debug_limit


def admit(pool: PoolFacts, me: Waiting) -> Admission:
    """The allocation for a waiting job if it is its turn and all of it fits."""
    others = tuple(c for c in pool.claims if (c.namespace, c.job) != (me.namespace, me.job))
    room = Room(pool, others)
    queue = sorted((w for w in pool.waiting if w.uid != me.uid), key=order)
    ahead = [w for w in queue if order(w) < order(me)]
    blocker: Waiting | None = None
    for earlier in ahead:
        shares = room.fit(earlier)
        if shares is not None:
            room.take(earlier.priority, shares)
        if shares is not None or pool.spec.queueing is Queueing.STRICT:
            blocker = blocker or earlier
    strict = blocker if pool.spec.queueing is Queueing.STRICT else None
    allocation = room.fit(me) if strict is None else None
    if allocation is not None:
        return Admission(allocation=allocation, position=len(ahead) + 1)
    return _refuse(room, me, (*others, *pool.foreign), blocker, len(ahead) + 1)


def _refuse(room: Room, me: Waiting, others: tuple[Claim, ...], blocker: Waiting | None, position: int) -> Admission:
    pods = me.devices // me.per_pod
    need = f"needs {me.devices} devices ({pods} pods of {me.per_pod})"
    if position > EXPLAINED_POSITIONS:
        message = f"{need}; more than {EXPLAINED_POSITIONS} jobs are ahead in pool {room.pool.name}"
        return Admission(reason=Reason.WAITING_FOR_QUOTA, message=message, position=position)
    free = room.free(me.priority)
    behind = f"; queued behind {blocker.namespace}/{blocker.job}" if blocker else ""
    if free >= me.devices and (blocker is None or room.pool.spec.queueing is Queueing.BEST_EFFORT):
        run = me.per_pod * me.together
        message = f"{need}; {free} are free in pool {room.pool.name}, but not {run} at a time on enough nodes"
        return Admission(reason=Reason.TOPOLOGY_PLACEMENT_FAILED, message=message + behind, position=position)
    message = f"{need}; {free} of {room.total} free in pool {room.pool.name}"
    message += _limits(room, me) + _holders(others) + behind
    return Admission(reason=Reason.WAITING_FOR_QUOTA, message=message, position=position)


def _limits(room: Room, me: Waiting) -> str:
    parts = ""
    if room.pool.spec.quota is not None:
        parts += f", quota {room.limit} with {room.reserved} reserved"
    if me.priority is Priority.DEBUG:
        parts += f", debug share {room.debug_limit} with {room.debug_reserved} in use"
    lost = [n.node for n in room.pool.nodes if not n.ready]
    return parts + (f", not ready: {', '.join(sorted(lost)[:5])}" if lost else "")


def _holders(claims: tuple[Claim, ...]) -> str:
    sizes = sorted(((sum(s.devices for s in c.shares), f"{c.namespace}/{c.job}") for c in claims), reverse=True)
    if not sizes:
        return ""
    named = ", ".join(f"{name} ({devices})" for devices, name in sizes[:5])
    more = f" and {len(sizes) - 5} more" if len(sizes) > 5 else ""
    return f"; held by {named}{more}"
