"""Which jobs get a loop, and what wakes it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kuangchao_operator.handlers.changes import devices_freed, needs_loop, urgent
from kuangchao_operator.handlers.jobs import JobLoops
from kuangchao_operator.kube.cache import Cache, JobRecord
from kuangchao_operator.layers.execution.model import Decision
from kuangchao_operator.shell import loop as loop_module
from tests.unit.kube.bodies import descriptor, job, node, pod, pool
from tests.unit.shell.fakes import Rig

COMPLETE = {
    "conditions": [
        {"type": "Complete", "status": "True", "reason": "Succeeded", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    ]
}
HOLDS = {"attempt": 1, "allocation": [{"node": "node-1", "devices": 2, "pods": "0-1"}]}


def record(**more: Any) -> JobRecord:
    cache = Cache()
    cache.see("TrainingJob", job(**more))
    return next(iter(cache.jobs))


def held(**more: Any) -> JobRecord:
    return record(metadata={"finalizers": ["kuangchao.io/cleanup"], **more.pop("metadata", {})}, **more)


def test_who_needs_a_loop() -> None:
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert needs_loop(record())
    assert not needs_loop(record(status=COMPLETE))
    assert needs_loop(held(status=COMPLETE)), "it ended while nobody looked: still to be cleaned up"
    assert needs_loop(record(status=COMPLETE, spec={"ttlSecondsAfterFinished": 5}))
    assert needs_loop(held(metadata=gone))
    assert not needs_loop(record(metadata=gone)), "nothing of ours holds it back"


def test_what_the_owner_does_is_urgent() -> None:
    assert urgent(None, record())
    assert urgent(record(), record(metadata={"generation": 2}))
    assert urgent(record(), record(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    assert not urgent(record(), record(status=HOLDS))


def test_which_changes_give_others_a_chance() -> None:
    assert devices_freed(record(status=HOLDS), None)
    assert devices_freed(record(status=HOLDS), record(status=COMPLETE))
    assert devices_freed(record(status={}), record(status={}, spec={"suspend": True}))
    assert not devices_freed(None, record())
    assert not devices_freed(record(status=HOLDS), record(status={**HOLDS, "readyPods": 1}))


class Watched:
    """Loops over a cache whose every pass is counted by job."""

    def __init__(self) -> None:
        self.cache, self.passes = Cache(), dict[str, int]()
        rig = Rig(lambda snapshot: Decision(status=None))
        self.world, self.fence = rig.world, rig.fence
        counted = {name: getattr(rig.ports, name) for name in rig.ports.__slots__} | {"decide": self._decide}
        self.loops = JobLoops(self.cache, loop_module.LoopPorts(**counted))

    def _decide(self, snapshot: Any) -> Decision:
        name = snapshot.job.metadata.name
        self.passes[name] = self.passes.get(name, 0) + 1
        return Decision(status=None)

    def see(self, kind: str, body: dict[str, Any]) -> None:
        self.cache.see(kind, body)
        if kind == "TrainingJob":
            for entry in self.cache.jobs:
                self.world.jobs[entry.job.metadata.name] = entry.job

    async def settle(self) -> dict[str, int]:
        """Passes since the last call, once all loops rest."""
        before = None
        while before != self.passes:
            before = dict(self.passes)
            for _ in range(200):  # loops have no pauses here: each goes as far as it can
                await asyncio.sleep(0)
        self.passes.clear()
        return before or {}


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(loop_module, "DEBOUNCE", 0.0)
    made = Watched()
    made.see("ResourcePool", pool("p"))
    made.see("TrainingJob", job("holder", version=1, uid="u1", status=HOLDS))
    made.see("TrainingJob", job("waiter", version=2, uid="u2", status={"planHash": "a" * 64}))
    made.see("TrainingJob", job("done", version=3, uid="u3", status=COMPLETE))
    yield made
    await made.loops.stop()


async def test_nothing_is_decided_before_the_start(watched: Watched) -> None:
    assert await watched.settle() == {}
    watched.loops.start()
    assert await watched.settle() == {"holder": 1, "waiter": 1}


async def test_the_fence_is_right_before_anything_is_decided(watched: Watched) -> None:
    watched.loops.align_fence()
    assert watched.fence.attempts == {"u1": 1, "u2": None, "u3": None}


async def test_a_new_job_gets_a_loop(watched: Watched) -> None:
    watched.loops.start()
    await watched.settle()
    watched.see("TrainingJob", job("new", version=9, uid="u9"))
    assert (await watched.settle()).keys() == {"new"}


async def test_pods_wake_their_own_job_and_their_end_wakes_those_that_wait(watched: Watched) -> None:
    watched.loops.start()
    await watched.settle()
    body = pod(version=9)
    body["metadata"]["labels"]["kuangchao.io/job-uid"] = "u1"
    watched.see("Pod", body)
    assert (await watched.settle()).keys() == {"holder"}
    watched.cache.forget("Pod", {**body, "metadata": {**body["metadata"], "resourceVersion": "10"}})
    assert (await watched.settle()).keys() == {"holder", "waiter"}


async def test_devices_set_free_wake_those_that_wait(watched: Watched) -> None:
    watched.loops.start()
    await watched.settle()
    watched.see("TrainingJob", job("holder", version=9, uid="u1", status=COMPLETE))
    assert "waiter" in await watched.settle()


async def test_progress_of_one_job_wakes_no_other(watched: Watched) -> None:
    watched.loops.start()
    await watched.settle()
    watched.see("TrainingJob", job("holder", version=9, uid="u1", status={**HOLDS, "progressText": "5/10"}))
    assert (await watched.settle()).keys() == {"holder"}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("Node", node(version=9)),
        ("ResourceDescriptor", descriptor(version=9)),
        ("ResourcePool", pool(version=9, quota=1)),
    ],
)
async def test_what_a_pool_consists_of_wakes_those_that_wait(watched: Watched, kind: str, body: dict[str, Any]) -> None:
    watched.loops.start()
    await watched.settle()
    watched.see(kind, body)
    assert (await watched.settle()).keys() == {"waiter"}
