"""Snapshots of jobs from the cache: the operator's side of the loop's facts."""

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final, Protocol

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.facts.store import JobStore
from kuangchao_operator.kube import paths
from kuangchao_operator.kube.cache import Cache, JobRecord
from kuangchao_operator.kube.client import KubeApi
from kuangchao_operator.kube.plans import KubePlans
from kuangchao_operator.kube.podfacts import PodRecord
from kuangchao_operator.kube.pools import pool_facts
from kuangchao_operator.layers.execution.model import AgentFact, JobSnapshot, PodFact
from kuangchao_operator.shell.fencing import ended
from kuangchao_operator.shell.hearing import Hearing
from kuangchao_operator.shell.ports import Facts

CLAIM_SECONDS: Final = 10.0
"""A claim that was seen to exist is not looked up again within this time."""


class Agents(Protocol):
    """The newest heartbeats, as execution's service keeps them."""

    def agents(self, job_uid: str) -> tuple[AgentFact, ...]:
        """Facts of a job's agents."""


class KubeFacts(Facts):
    """Facts from the cache; only plans and claims are read from the API server, and remembered."""

    def __init__(
        self,
        api: KubeApi,
        cache: Cache,
        store: JobStore,
        agents: Agents,
        plans: KubePlans,
        clock: Callable[[], datetime],
        release_namespace: str | None,
        revoked: Callable[[str], bool],
    ) -> None:
        self._api, self._cache, self._store, self._clock = api, cache, store, clock
        self._agents, self._plans, self._revoked = agents, plans, revoked
        self._release_namespace, self._started = release_namespace, clock()
        self.hearing = Hearing(clock)
        self._claims: dict[tuple[str, str], float] = {}
        self._missing: dict[tuple[str, str], dict[str, datetime]] = {}
        """By job: nodes that its pods are bound to and that do not exist, and since when that is known."""

    def begin(self) -> None:
        """Decisions begin now: until now no agent could be heard, however long the start took."""
        self._started = self._clock()

    async def snapshot(self, namespace: str, name: str) -> JobSnapshot | None:
        """Everything known of the job now."""
        record = self._cache.jobs.get(name, namespace)
        if record is None:
            self._missing.pop((namespace, name), None)
            return None
        job = record.job
        problem = await self._storage(job)
        return JobSnapshot.model_construct(
            now=self._clock(),
            job=job,
            pool=pool_facts(job.spec.pool, self._cache),
            plan=await self._plans.plan(job),
            failed_plan=await self._plans.failed(job),
            pods=self._pods(job),
            agents=self._agents.agents(job.metadata.uid),
            storage_problem=problem[1] if problem else None,
            storage_reason=problem[0] if problem else None,
            revoked=self._revoked(job.metadata.uid),
            release_namespace=self._release_namespace,
            operator_started_at=self._started,
            deaf_until=self.hearing.deaf_until(),
        )

    async def refresh(self, namespace: str, name: str) -> None:
        """Read the job from the API server into the cache."""
        await self._store.get(namespace, name)

    def _pods(self, job: TrainingJob) -> tuple[PodFact, ...]:
        pods = self._cache.pods_of(job.metadata.uid)
        missing = self._missing_nodes((job.metadata.namespace or "", job.metadata.name), pods)
        return tuple(self._with_node(pod, missing) for pod in pods)

    def _missing_nodes(self, key: tuple[str, str], pods: list[PodRecord]) -> dict[str, datetime]:
        """A Node object says since when it is lost; for one that is gone, the first look that missed it has to do.

        A node that is so new that its watch event is still to come is among them for a moment, which harms nothing.
        """
        known, now = self._missing.pop(key, {}), self._clock()
        nodes = {pod.fact.node for pod in pods if pod.fact.node is not None}
        missing = {node: known.get(node, now) for node in nodes if self._cache.nodes.get(node) is None}
        if missing:
            self._missing[key] = missing
        return missing

    def _with_node(self, pod: PodRecord, missing: dict[str, datetime]) -> PodFact:
        if pod.fact.node is None:
            return pod.fact
        node = self._cache.nodes.get(pod.fact.node)
        if node is not None and node.ready:
            return pod.fact
        since = node.lost_since if node else missing[pod.fact.node]
        return pod.fact.model_copy(update={"node_ready": False, "node_lost_since": since})

    async def _storage(self, job: TrainingJob) -> tuple[Reason, str] | None:
        """Why the checkpoint claim cannot be used. Asked only while the job could still be started."""
        storage = job.spec.checkpoint.storage
        if storage is None or job.spec.suspend or ended(job.status) or (job.status and job.status.allocation):
            return None
        if storage.path is not None:
            other = self._path_user(job, storage.claim_name, storage.path)
            if other is not None:
                message = f"spec.checkpoint.storage.path={storage.path!r} is in use by job {other}"
                return Reason.CHECKPOINT_PATH_IN_USE, message
        if await self._claim_exists(job.metadata.namespace or "", storage.claim_name):
            return None
        message = f"spec.checkpoint.storage.claimName={storage.claim_name!r}: no such PersistentVolumeClaim here"
        return Reason.STORAGE_NOT_FOUND, message

    async def _claim_exists(self, namespace: str, claim: str) -> bool:
        key, now = (namespace, claim), time.monotonic()
        if self._claims.get(key, 0.0) > now:
            return True
        found = await self._api.get(paths.item("PersistentVolumeClaim", claim, namespace))
        if found is None:
            return False
        self._claims[key] = now + CLAIM_SECONDS
        return True

    def _path_user(self, job: TrainingJob, claim: str, path: str) -> str | None:
        """Another job of this directory that has not ended and goes first: it is older, or holds devices already."""
        me = _age(job)
        for record in self._cache.jobs:
            status = record.job.status
            if not self._same_path(record, job, claim, path) or ended(status):
                continue
            if _age(record.job) < me or (status is not None and status.allocation):
                return record.job.metadata.name
        return None

    @staticmethod
    def _same_path(record: JobRecord, job: TrainingJob, claim: str, path: str) -> bool:
        other, storage = record.job.metadata, record.job.spec.checkpoint.storage
        if other.namespace != job.metadata.namespace or other.uid == job.metadata.uid or storage is None:
            return False
        theirs = storage.path or names.checkpoint_directory(other.name, other.uid)
        return storage.claim_name == claim and theirs == path


def _age(job: TrainingJob) -> tuple[float, str]:
    created = job.metadata.creation_timestamp
    return (created.timestamp() if created else 0.0, job.metadata.uid)
