"""What a pool counts where its nodes are another pool's, too."""

from kuangchao_operator.kube.cache import Cache
from kuangchao_operator.kube.pools import pool_facts
from kuangchao_operator.layers.execution.model import PoolFacts
from tests.unit.kube import bodies


def facts(cache: Cache, name: str) -> PoolFacts:
    found = pool_facts(name, cache)
    assert found is not None
    return found


def held(pool: PoolFacts) -> tuple[list[str], list[tuple[str, int]]]:
    """Jobs of the pool itself, and what others hold on its nodes."""
    return [c.job for c in pool.claims], [(c.job, sum(s.devices for s in c.shares)) for c in pool.foreign]


def test_jobs_of_pools_that_share_nodes_are_seen_by_both() -> None:
    cache = Cache()
    for number, zone in ((1, "east"), (2, "west")):
        cache.see("Node", bodies.node(f"node-{number}", zone=zone))
        cache.see("ResourceDescriptor", bodies.descriptor(f"node-{number}"))
    cache.see("ResourcePool", bodies.pool("all"))
    cache.see("ResourcePool", bodies.pool("big", cpuPerDevice="2"))
    cache.see("ResourcePool", bodies.pool("east", nodeSelector={"zone": "east"}))
    shares = [{"node": f"node-{n}", "devices": n, "pods": "0"} for n in (1, 2)]
    cache.see("TrainingJob", bodies.job("mine", pool="all", status={"allocation": shares}))
    assert held(facts(cache, "all")) == (["mine"], [])
    assert held(facts(cache, "big")) == ([], [("mine", 2)])
    assert held(facts(cache, "east")) == ([], [("mine", 1)])
    cache.see("TrainingJob", bodies.job("mine", version=2, pool="all", status={}))
    assert held(facts(cache, "big")) == ([], [])
