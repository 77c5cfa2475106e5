"""A pool with everything that admission depends on, from the cache. Pure over the cache's values."""

from collections import Counter, defaultdict
from typing import Final

from kuangchao_contracts.api import ResourcePool, TrainingJob
from kuangchao_contracts.api.trainingjob import NodeShare, TrainingJobStatus
from kuangchao_contracts.ranges import to_ranges
from kuangchao_contracts.reasons import ConditionType
from kuangchao_operator.kube.cache import Cache, JobRecord
from kuangchao_operator.kube.podfacts import PodRecord
from kuangchao_operator.kube.slots import in_pool, shapes, slots
from kuangchao_operator.layers.execution.model import Claim, NodeSlots, PoolFacts, Waiting
from kuangchao_operator.shell.fencing import ended, holds

_ENDED_PHASES: Final = ("Succeeded", "Failed")


def pool_facts(name: str, cache: Cache) -> PoolFacts | None:
    """The facts of a pool, or None when there is no such pool."""
    record = cache.pools.get(name)
    if record is None:
        return None
    nodes = pool_nodes(record.pool, cache)
    jobs = cache.jobs_in(name)
    return PoolFacts(
        name=name,
        spec=record.pool.spec,
        nodes=nodes,
        claims=tuple(filter(None, (claim(entry, cache.pods_of(entry.job.metadata.uid)) for entry in jobs))),
        waiting=tuple(filter(None, (waiting(entry.job) for entry in jobs))),
        shapes=shapes(nodes, cache.newest_descriptors(), record.pool.spec),
        deleting=record.pool.metadata.deletion_timestamp is not None,
    )


def pool_nodes(pool: ResourcePool, cache: Cache) -> tuple[NodeSlots, ...]:
    """Slots of the pool's nodes, by name."""
    descriptors = cache.newest_descriptors()
    found = [slots(node, descriptors.get(node.name), pool.spec) for node in cache.nodes if in_pool(node, pool.spec)]
    return tuple(sorted(found, key=lambda node: node.node))


def claim(entry: JobRecord, pods: list[PodRecord]) -> Claim | None:
    """What a job holds: its allocation, and on each node no less than its pods that still exist there use."""
    job = entry.job
    reserved = {share.node: share for share in job.status.allocation} if job.status else {}
    used: dict[str, list[int]] = defaultdict(list)
    for pod in pods:
        if pod.fact.owned and pod.fact.node and pod.fact.phase not in _ENDED_PHASES:
            used[pod.fact.node].append(pod.fact.index)
    shares = []
    for node in sorted({*reserved, *used}):
        in_use = len(used.get(node, ())) * job.spec.devices.per_pod
        share = reserved.get(node)
        if share is None or in_use > share.devices:
            share = NodeShare(node=node, devices=in_use, pods=to_ranges(used[node]))
        shares.append(share)
    if not shares:
        return None
    metadata = job.metadata
    return Claim(
        namespace=metadata.namespace or "", job=metadata.name, priority=job.spec.priority, shares=tuple(shares)
    )


def waiting(job: TrainingJob) -> Waiting | None:
    """The job's place in the queue, if it wants devices that it does not have."""
    if not is_waiting(job):
        return None
    metadata, status = job.metadata, job.status or TrainingJobStatus()
    if metadata.creation_timestamp is None:
        return None
    return Waiting(
        namespace=metadata.namespace or "",
        job=metadata.name,
        uid=metadata.uid,
        priority=job.spec.priority,
        created=metadata.creation_timestamp,
        devices=job.spec.devices.count,
        per_pod=job.spec.devices.per_pod,
        avoid_nodes=status.avoid_nodes,
    )


def is_waiting(job: TrainingJob) -> bool:
    """Whether a job queues: planned, wanted by its owner, without an allocation, and neither stalled nor over."""
    status = job.status
    if status is None or status.allocation or job.spec.suspend or job.spec.managed_by is not None:
        return False
    if job.metadata.deletion_timestamp is not None or ended(status):
        return False
    stopped = holds(status, ConditionType.SUSPENDED) or holds(status, ConditionType.STALLED)
    return holds(status, ConditionType.PLANNED) and not stopped


def devices_of(claims: tuple[Claim, ...]) -> Counter[str]:
    """Claimed devices by node."""
    total: Counter[str] = Counter()
    for entry in claims:
        for share in entry.shares:
            total[share.node] += share.devices
    return total
