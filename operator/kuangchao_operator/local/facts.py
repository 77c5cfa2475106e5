"""Snapshots of the one job of a run: its record, this machine as its pool, its agent processes. Decides nothing."""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_operator.layers.execution import limits
from kuangchao_operator.layers.execution.launcher import PlanSource
from kuangchao_operator.layers.execution.model import AgentFact, JobSnapshot, NodeSlots, PodFact, PoolFacts
from kuangchao_operator.layers.resource.decide import shapes, slots
from kuangchao_operator.local.pool import LocalPool
from kuangchao_operator.local.store import LocalJobStore
from kuangchao_operator.shell.hearing import Hearing
from kuangchao_operator.shell.ports import Facts


class Agents(Protocol):
    """The newest heartbeats, as execution's service keeps them."""

    def agents(self, job_uid: str) -> tuple[AgentFact, ...]:
        """Facts of a job's agents."""


class Pods(Protocol):
    """The agent processes, as the launcher keeps them."""

    def pods(self) -> tuple[PodFact, ...]:
        """Facts of all that exist."""


class PlanRecord(PlanSource):
    """Where the plans of the job are kept: what ParallelPlan objects are in a cluster."""

    def __init__(self) -> None:
        self._plans: dict[str, ParallelPlan] = {}

    def keep(self, plan: ParallelPlan) -> None:
        """Record a plan."""
        self._plans[plan.hash] = plan

    async def plan(self, job: TrainingJob) -> ParallelPlan | None:
        """The plan that the job's status names, once it is recorded."""
        return self._plans.get(job.status.plan_hash or "") if job.status is not None else None

    def failed(self, job: TrainingJob) -> ParallelPlan | None:
        """The newest plan that ran out of memory."""
        failures = job.status.out_of_memory if job.status is not None else ()
        return self._plans.get(failures[-1].plan_hash) if failures else None


class LocalFacts(Facts):
    """Everything is in memory, so a snapshot is always the newest."""

    def __init__(
        self,
        store: LocalJobStore,
        pool: LocalPool,
        plan: PlanRecord,
        pods: Pods,
        agents: Agents,
        clock: Callable[[], datetime],
    ) -> None:
        self._store, self._pool, self._plan = store, pool, plan
        self._pods, self._agents, self._clock = pods, agents, clock
        self._started = clock()
        self.hearing = Hearing(clock)

    async def snapshot(self, namespace: str, name: str) -> JobSnapshot | None:
        """Everything known now."""
        job = await self._store.get(namespace, name)
        if job is None:
            return None
        return JobSnapshot(
            now=self._clock(),
            job=job,
            pool=pool_facts(job, self._pool),
            plan=await self._plan.plan(job),
            failed_plan=self._plan.failed(job),
            pods=self._pods.pods(),
            agents=self._agents.agents(job.metadata.uid),
            operator_started_at=self._started,
            silence_seconds=limits.AGENT_STUCK,
            deaf_until=self.hearing.deaf_until(),
        )

    async def refresh(self, namespace: str, name: str) -> None:
        """There is no copy that could be old."""


def pool_facts(job: TrainingJob, pool: LocalPool) -> PoolFacts:
    """This machine under the name of the pool that the job asks for; nobody else uses it."""
    node = slots(pool.spec, pool.descriptor)
    return PoolFacts(
        name=job.spec.pool,
        spec=pool.spec,
        nodes=(
            NodeSlots(
                node=node.node,
                devices=node.devices,
                device_memory_bytes=node.device_memory_bytes,
                ready=node.ready,
                unhealthy=node.unhealthy,
            ),
        ),
        shapes=shapes(pool.spec, (pool.descriptor,)),
    )
