"""In-memory ports of the job loop: a store that compares and swaps, and actions that are written down."""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.meta import ObjectMeta
from kuangchao_contracts.api.trainingjob import Devices, NodeShare, TrainingJobSpec, TrainingJobStatus
from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import ConflictError
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_operator.facts.store import JobStore, Mutation
from kuangchao_operator.layers.execution.model import Action, Decision, Emit, JobSnapshot
from kuangchao_operator.shell.actions import Actions
from kuangchao_operator.shell.loop import JobKey, JobLoop, LoopPorts
from kuangchao_operator.shell.ports import Effects, Facts

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(
    name: str = "j", status: TrainingJobStatus | None = None, pool: str = "p", deleting: bool = False
) -> TrainingJob:
    """A stored job."""
    metadata = ObjectMeta(
        name=name,
        namespace="ns",
        uid=f"uid-{name}",
        generation=1,
        resource_version="1",
        creation_timestamp=NOW,
        deletion_timestamp=NOW if deleting else None,
    )
    spec = TrainingJobSpec(pool=pool, task="m:f", devices=Devices(count=2))
    return TrainingJob(metadata=metadata, spec=spec, status=status)


class World(JobStore, Facts, Effects):
    """Jobs, what was done to them, and one clock."""

    def __init__(self, *jobs: TrainingJob) -> None:
        self.jobs = {j.metadata.name: j for j in jobs}
        self.finalizers: set[str] = set()
        self.done: list[str] = []
        self.events: list[str] = []
        self.writes = 0
        self.before_write: Callable[[], None] | None = None
        self.now = NOW

    async def get(self, namespace: str, name: str) -> TrainingJob | None:
        return self.jobs.get(name)

    async def update_status(self, namespace: str, name: str, uid: str, mutate: Mutation) -> TrainingJob:
        await asyncio.sleep(0)
        if self.before_write is not None:
            before, self.before_write = self.before_write, None
            before()
        current = self.jobs.get(name)
        if current is None or current.metadata.uid != uid:
            raise ConflictError("gone")
        status = mutate(current)
        if status != current.status:
            self.writes += 1
            self.set_status(name, status)
        return self.jobs[name]

    def set_status(self, name: str, status: TrainingJobStatus) -> None:
        self.jobs[name] = self.jobs[name].replace(status=status)

    async def snapshot(self, namespace: str, name: str) -> JobSnapshot | None:
        await asyncio.sleep(0)
        found = self.jobs.get(name)
        return None if found is None else JobSnapshot(now=self.now, job=found, operator_started_at=NOW)

    async def refresh(self, namespace: str, name: str) -> None:
        self.done.append("refresh")

    def held(self, job: TrainingJob) -> bool:
        return job.metadata.name in self.finalizers

    async def hold(self, job: TrainingJob) -> None:
        self.finalizers.add(job.metadata.name)

    async def release(self, job: TrainingJob) -> None:
        self.finalizers.discard(job.metadata.name)
        if job.metadata.deletion_timestamp is not None:
            self.jobs.pop(job.metadata.name, None)

    async def record_plan(self, job: TrainingJob, plan: ParallelPlan) -> None:
        self.done.append("recordPlan")

    async def renew_tokens(self, job: TrainingJob, attempt: int, incarnation: int) -> None:
        self.done.append("renewTokens")

    async def emit(self, job: TrainingJob, event: Emit) -> None:
        self.events.append(event.message)

    async def delete_job(self, job: TrainingJob) -> None:
        self.done.append("deleteJob")
        self.jobs.pop(job.metadata.name, None)


class RecordedActions(Actions):
    """Writes actions down, and fails those for which an error is queued."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.errors: dict[str, list[Exception]] = {}

    async def run(self, job: TrainingJob, action: Action) -> Contract | None:
        if self.errors.get(action.kind):
            raise self.errors[action.kind].pop(0)
        if isinstance(action, Emit):
            await self._world.emit(job, action)
        else:
            self._world.done.append(action.kind)
        return None


class RecordedFence:
    """The last word on each job."""

    def __init__(self) -> None:
        self.attempts: dict[str, int | None] = {}

    def set(self, job_uid: str, attempt: int) -> None:
        self.attempts[job_uid] = attempt

    def close(self, job_uid: str) -> None:
        self.attempts[job_uid] = None


class Rig:
    """A world with loops in it."""

    def __init__(self, decide: Callable[[JobSnapshot], Decision], *jobs: TrainingJob) -> None:
        self.world = World(*jobs)
        self.actions = RecordedActions(self.world)
        self.fence = RecordedFence()
        self.ports = LoopPorts(
            facts=self.world,
            effects=self.world,
            store=self.world,
            fence=self.fence,
            admission=asyncio.Lock(),
            actions=self.actions,
            decide=decide,
            clock=lambda: self.world.now,
            rng=random.Random(1),
        )

    def loop(self, name: str = "j") -> JobLoop:
        return JobLoop(JobKey("ns", name, f"uid-{name}"), self.ports)


def allocated(attempt: int = 1, devices: int = 2) -> TrainingJobStatus:
    """Status of a job that holds devices of node n."""
    return TrainingJobStatus(attempt=attempt, allocation=(NodeShare(node="n", devices=devices, pods="0-1"),))
