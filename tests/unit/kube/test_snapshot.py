"""What a job's snapshot says of the nodes of its pods: ready, silent, or no longer there."""

from datetime import UTC, datetime, timedelta
from typing import Any

from kuangchao_operator.kube.cache import Cache
from kuangchao_operator.kube.snapshot import KubeFacts
from kuangchao_operator.layers.execution.model import AgentFact, PodFact
from tests.unit.kube import bodies

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


class World:
    """A cache with a job of two pods on two nodes, and a clock."""

    def __init__(self) -> None:
        self.now, self.cache = START, Cache()
        unused: Any = None
        self.facts = KubeFacts(
            unused, self.cache, unused, self, self, lambda: self.now, "kuangchao-system", lambda _: False
        )
        self.cache.see("Node", bodies.node("node-1"))
        self.cache.see("Node", bodies.node("node-2"))
        self.cache.see("TrainingJob", bodies.job())
        for index in range(2):
            body = bodies.pod(f"j-abcdef-0-{index}", index=index)
            body["spec"]["nodeName"] = f"node-{index + 1}"
            self.cache.see("Pod", body)

    def agents(self, _: str) -> tuple[AgentFact, ...]:
        return ()

    async def plan(self, _: Any) -> None:
        return None

    async def failed(self, _: Any) -> None:
        return None

    async def pods(self) -> list[PodFact]:
        snapshot = await self.facts.snapshot("ns", "j")
        assert snapshot is not None
        return sorted(snapshot.pods, key=lambda pod: pod.index)


async def test_the_grace_of_a_new_operator_begins_with_its_decisions() -> None:
    """A start may wait for issuer, volume or API server for minutes, and until it is over no agent gets through."""
    world = World()
    world.now += timedelta(seconds=90)
    world.facts.begin()
    snapshot = await world.facts.snapshot("ns", "j")
    assert snapshot is not None
    assert snapshot.operator_started_at == START + timedelta(seconds=90)


async def test_the_first_look_after_a_standstill_says_so_itself() -> None:
    """Whatever the duty that looks every second was kept from doing as well."""
    world = World()
    before = await world.facts.snapshot("ns", "j")
    world.now += timedelta(seconds=20)
    after = await world.facts.snapshot("ns", "j")
    assert before is not None and after is not None
    assert (before.deaf_until, after.deaf_until) == (None, START + timedelta(seconds=20))


async def test_ready_nodes_are_not_lost() -> None:
    pods = await World().pods()
    assert [(pod.node_ready, pod.node_lost_since) for pod in pods] == [(True, None), (True, None)]


async def test_a_silent_node_is_lost_since_it_says_so() -> None:
    world = World()
    world.cache.see("Node", bodies.node("node-2", version=2, ready="Unknown"))
    first, second = await world.pods()
    assert (first.node_ready, first.node_lost_since) == (True, None)
    assert (second.node_ready, second.node_lost_since) == (False, datetime(2026, 1, 1, tzinfo=UTC))


async def test_a_deleted_node_is_lost_since_it_was_first_missed() -> None:
    world = World()
    world.cache.forget("Node", bodies.node("node-2", version=2))
    assert (await world.pods())[1].node_lost_since == START
    world.now += timedelta(seconds=30)
    first, second = await world.pods()
    assert (first.node_ready, first.node_lost_since) == (True, None)
    assert (second.node_ready, second.node_lost_since) == (False, START)


async def test_a_node_that_comes_back_begins_anew() -> None:
    world = World()
    world.cache.forget("Node", bodies.node("node-2", version=2))
    await world.pods()
    world.cache.see("Node", bodies.node("node-2", version=3))
    assert (await world.pods())[1].node_lost_since is None
    world.now += timedelta(seconds=30)
    world.cache.forget("Node", bodies.node("node-2", version=4))
    assert (await world.pods())[1].node_lost_since == world.now


async def test_a_job_of_the_same_name_inherits_nothing() -> None:
    world = World()
    world.cache.forget("Node", bodies.node("node-2", version=2))
    await world.pods()
    world.cache.forget("TrainingJob", bodies.job(version=2))
    assert await world.facts.snapshot("ns", "j") is None
    world.now += timedelta(seconds=30)
    world.cache.see("TrainingJob", bodies.job(version=3))
    assert (await world.pods())[1].node_lost_since == world.now
