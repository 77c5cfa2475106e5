"""A pool with everything that admission depends on, from the cache. Counts by the rules of the resource layer."""

from collections.abc import Iterator
from dataclasses import dataclass

from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
from kuangchao_contracts.descriptor import NodeDescriptor
from kuangchao_operator.kube.cache import Cache, JobRecord
from kuangchao_operator.kube.nodes import NodeRecord
from kuangchao_operator.layers.execution.facts import claim, waiting
from kuangchao_operator.layers.execution.model import Claim, NodeSlots, PoolFacts
from kuangchao_operator.layers.execution.overlap import foreign_claims
from kuangchao_operator.layers.resource.decide import shapes, slots, undescribed
from kuangchao_operator.layers.resource.model import PoolNode
from kuangchao_operator.layers.resource.service import DescriptorReader


def in_pool(node: NodeRecord, spec: ResourcePoolSpec) -> bool:
    """Whether a node bears all labels of the pool's selector."""
    return all(node.labels.get(key) == value for key, value in spec.node_selector.items())


def pool_facts(name: str, cache: Cache) -> PoolFacts | None:
    """The facts of a pool, or None when there is no such pool."""
    return cache.derived(("pool", name), lambda: _pool_facts(name, cache))


def _pool_facts(name: str, cache: Cache) -> PoolFacts | None:
    record = cache.pools.get(name)
    if record is None:
        return None
    spec, jobs = record.pool.spec, cache.jobs_in(name)
    nodes, claims = pool_nodes(spec, cache), cache.derived("claims", lambda: _claims(cache))
    return PoolFacts(
        name=name,
        spec=spec,
        nodes=tuple(NodeSlots(**node.model_dump(exclude={"model"})) for node in nodes),
        claims=claims.of_pool.get(name, ()),
        foreign=tuple(foreign_claims(spec, {node.node for node in nodes}, _of_others(name, nodes, claims, cache))),
        waiting=tuple(filter(None, (waiting(entry.job) for entry in jobs))),
        shapes=shapes(spec, pool_descriptors(spec, cache)),
        deleting=record.pool.metadata.deletion_timestamp is not None,
    )


@dataclass(frozen=True, slots=True)
class _Claims:
    """What all jobs hold, by their pool and, as (pool, claim), by node."""

    of_pool: dict[str, tuple[Claim, ...]]
    on_node: dict[str, tuple[tuple[str, Claim], ...]]


def _claims(cache: Cache) -> _Claims:
    of_pool: dict[str, list[Claim]] = {}
    on_node: dict[str, list[tuple[str, Claim]]] = {}
    for record in cache.pools:
        name = record.pool.metadata.name
        for found in filter(None, (_claim(entry, cache) for entry in cache.jobs_in(name))):
            of_pool.setdefault(name, []).append(found)
            for share in found.shares:
                on_node.setdefault(share.node, []).append((name, found))
    return _Claims({k: tuple(v) for k, v in of_pool.items()}, {k: tuple(v) for k, v in on_node.items()})


def _of_others(
    name: str, nodes: tuple[PoolNode, ...], claims: _Claims, cache: Cache
) -> Iterator[tuple[ResourcePoolSpec, Claim]]:
    """Claims of other pools on these nodes, each once."""
    found = {
        (held.namespace, held.job): (pool, held)
        for node in nodes
        for pool, held in claims.on_node.get(node.node, ())
        if pool != name
    }
    for pool, held in found.values():
        other = cache.pools.get(pool)
        if other is not None:
            yield other.pool.spec, held


def pool_nodes(spec: ResourcePoolSpec, cache: Cache) -> tuple[PoolNode, ...]:
    """What each node of the pool can give away. A cordoned node takes no new pods, so it counts as not ready."""
    descriptors = _descriptors(cache)
    found = []
    for node in cache.nodes:
        if in_pool(node, spec):
            descriptor, usable = descriptors.get(node.name), node.ready and node.schedulable
            found.append(slots(spec, descriptor, usable) if descriptor else undescribed(node.name, usable))
    return tuple(sorted(found, key=lambda node: node.node))


def pool_descriptors(spec: ResourcePoolSpec, cache: Cache) -> tuple[NodeDescriptor, ...]:
    """Descriptors in force of the pool's nodes."""
    descriptors = _descriptors(cache)
    return tuple(descriptors[n.name] for n in cache.nodes if in_pool(n, spec) and n.name in descriptors)


def _descriptors(cache: Cache) -> dict[str, NodeDescriptor]:
    return cache.derived("descriptors", cache.newest_descriptors)


def _claim(entry: JobRecord, cache: Cache) -> Claim | None:
    return claim(entry.job, [pod.fact for pod in cache.pods_of(entry.job.metadata.uid)])


class CachedDescriptors(DescriptorReader):
    """The resource layer's view of published descriptors."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    async def pool_descriptors(self, pool: str) -> tuple[NodeDescriptor, ...] | None:
        """Descriptors of a pool's nodes; None when there is no such pool."""
        record = self._cache.pools.get(pool)
        return None if record is None else pool_descriptors(record.pool.spec, self._cache)
