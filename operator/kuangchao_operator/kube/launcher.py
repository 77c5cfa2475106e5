"""Makes and ends the children of jobs on the API server. Told what by execution through the gate; decides nothing.

Order of a launch: trust, tokens, Service, pods, so that a pod never starts without what it mounts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.errors import ConflictError, InvalidInputError
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_contracts.ports.execution import StopRequest
from kuangchao_contracts.ranges import from_ranges
from kuangchao_operator.gate.minting import JobRef, LayerTokens, PodRef
from kuangchao_operator.kube import paths
from kuangchao_operator.kube.cache import Cache
from kuangchao_operator.kube.podfacts import PodRecord, pod_record
from kuangchao_operator.kube.trust import TrustPublisher
from kuangchao_operator.kube.writer import Writer
from kuangchao_operator.layers.execution.children import PODS_PER_SECRET, build_secrets, build_service, secret_of
from kuangchao_operator.layers.execution.launcher import Launcher, PlanSource
from kuangchao_operator.layers.execution.pods import PodSettings, build_pod

PARALLEL: Final = 16
"""Calls to the API server at one time for one job: a gang of 64 starts within a second and floods nobody."""
OVERDUE_GRACE: Final = 1
MAX_CHUNKS: Final = names.MAX_PODS // PODS_PER_SECRET


class KubeLauncher(Launcher):
    """Pods, Service and Secrets of jobs."""

    def __init__(
        self,
        writer: Writer,
        cache: Cache,
        plans: PlanSource,
        tokens: LayerTokens,
        trust: TrustPublisher,
        settings: Callable[[TrainingJob], PodSettings],
        revision: Callable[[], str],
        exchange_above: int,
    ) -> None:
        self._writer, self._cache, self._plans = writer, cache, plans
        self._tokens, self._trust, self._settings = tokens, trust, settings
        self._revision, self._exchange_above = revision, exchange_above

    async def launch(self, job: TrainingJob, attempt: int, incarnation: int) -> None:
        """Make what is missing of an incarnation and give its pods the tokens of this attempt."""
        plan = await self._plans.plan(job)
        if plan is None or job.status is None:
            raise ConflictError("the plan is not recorded yet")
        nodes = node_of_pod(job)
        if sorted(nodes) != list(range(plan.pods)):
            raise InvalidInputError("status.allocation", sorted(nodes), f"must place pods 0 to {plan.pods - 1}")
        await self._trust.ensure(job.metadata.namespace or "")
        exchange = self._by_exchange(job, plan, incarnation)
        if not exchange:
            await self._write_tokens(job, plan, attempt, incarnation)
        await self._writer.apply(build_service(job))
        there = self._of(job, incarnation)
        settings = self._settings(job).replace(exchange=exchange)
        await together(
            self._mark(there[index], attempt)
            if index in there
            else self._create(job, settings, plan, node, incarnation, attempt, index)
            for index, node in sorted(nodes.items())
        )

    async def renew_tokens(self, job: TrainingJob, attempt: int, incarnation: int) -> None:
        """Rewrite the Secrets, then touch the pods: a kubelet looks at Secrets again at once when its pod changes.

        Pods that exchange account tokens see to it themselves; here it is only found out whether they can.
        """
        plan = await self._plans.plan(job)
        if plan is None:
            raise ConflictError("the plan is not recorded yet")
        if self._by_exchange(job, plan, incarnation):
            await self._probe(job, plan, attempt, incarnation)
            return
        await self._write_tokens(job, plan, attempt, incarnation)
        await together(self._mark(pod, attempt) for pod in self._of(job, incarnation).values())

    async def stop(self, job: TrainingJob, request: StopRequest) -> None:
        """Delete pods and, unless they drain, tokens of all incarnations up to the requested one."""
        pods = [pod for pod in await self._live_pods(job) if pod.fact.incarnation <= request.incarnation]
        await together(self._delete_pod(pod, _grace(pod, request)) for pod in pods)
        if not request.drain:
            await self._delete_secrets(job, {request.incarnation, *(pod.fact.incarnation for pod in pods)})

    async def reclaim(self, job: TrainingJob) -> None:
        """Delete pods, tokens, the Service, and plans that are not the job's any more."""
        pods = await self._live_pods(job)
        await together(self._delete_pod(pod, None) for pod in pods if not pod.fact.deleting)
        now = job.status.incarnation if job.status else 0
        await self._delete_secrets(job, {now, max(0, now - 1), *(pod.fact.incarnation for pod in pods)})
        metadata = job.metadata
        await self._writer.delete("Service", names.service_name(metadata.name, metadata.uid), metadata.namespace)
        await self._delete_old_plans(job)

    def _by_exchange(self, job: TrainingJob, plan: ParallelPlan, incarnation: int) -> bool:
        """How the pods of an incarnation get their tokens: as those that exist do, whatever the setting is by now."""
        there = self._of(job, incarnation)
        return all(pod.exchanges for pod in there.values()) if there else plan.pods > self._exchange_above

    async def _write_tokens(self, job: TrainingJob, plan: ParallelPlan, attempt: int, incarnation: int) -> None:
        there = self._of(job, incarnation)
        pods = [pod_ref(job, plan, incarnation, index, there.get(index)) for index in range(plan.pods)]
        bundles = await self._tokens.worker_bundles(_job_ref(job), attempt, pods)
        for secret in build_secrets(job, incarnation, dict(enumerate(bundles))):
            await self._writer.apply(secret)

    async def _probe(self, job: TrainingJob, plan: ParallelPlan, attempt: int, incarnation: int) -> None:
        """Whether issuer and API server, which an exchange needs, answer at all. Raises UnavailableError."""
        await self._tokens.worker_bundles(_job_ref(job), attempt, [pod_ref(job, plan, incarnation, 0, None)])
        metadata = job.metadata
        service = names.service_name(metadata.name, metadata.uid)
        await self._writer.api.get(paths.item("Service", service, metadata.namespace))

    async def _create(
        self,
        job: TrainingJob,
        settings: PodSettings,
        plan: ParallelPlan,
        node: str,
        incarnation: int,
        attempt: int,
        index: int,
    ) -> None:
        body = build_pod(job, plan, node, incarnation, attempt, index, settings)
        self._cache.see("Pod", await self._writer.create(body, job.metadata.uid))

    async def _mark(self, pod: PodRecord, attempt: int) -> None:
        labels = {names.LABEL_ATTEMPT: str(attempt)}
        annotations = {names.ANNOTATION_TOKEN_REVISION: self._revision()}
        await self._writer.mark("Pod", pod.namespace, pod.fact.name, labels=labels, annotations=annotations)

    def _pods(self, job: TrainingJob) -> list[PodRecord]:
        return [pod for pod in self._cache.pods_of(job.metadata.uid) if pod.fact.owned]

    def _of(self, job: TrainingJob, incarnation: int) -> dict[int, PodRecord]:
        """The pods of an incarnation, by index."""
        return {pod.fact.index: pod for pod in self._pods(job) if pod.fact.incarnation == incarnation}

    async def _live_pods(self, job: TrainingJob) -> list[PodRecord]:
        """The job's own pods as the API server has them now: one that a watch has not shown yet must go too."""
        path = paths.collection("Pod", job.metadata.namespace)
        selector = f"{names.LABEL_JOB_UID}={job.metadata.uid}"
        bodies = [body async for page in self._writer.api.pages(path, selector) for body in page["items"]]
        records = (pod_record(body) for body in bodies)
        return [record for record in records if record is not None and record.fact.owned]

    async def _delete_pod(self, pod: PodRecord, grace: int | None) -> None:
        await self._writer.delete("Pod", pod.fact.name, pod.namespace, uid=pod.uid, grace=grace)

    async def _delete_secrets(self, job: TrainingJob, incarnations: set[int]) -> None:
        """Secrets cannot be listed, on purpose; their names are known, and the first that is missing is the end."""
        for incarnation in sorted(incarnations):
            for chunk in range(MAX_CHUNKS):
                name = secret_of(job, incarnation, chunk * PODS_PER_SECRET)
                if not await self._writer.delete("Secret", name, job.metadata.namespace):
                    break

    async def _delete_old_plans(self, job: TrainingJob) -> None:
        """An ended job keeps its plan for people to read; one that is suspended or going has no plan."""
        keep = job.status.plan_name if job.status and job.metadata.deletion_timestamp is None else None
        path = paths.collection("ParallelPlan", job.metadata.namespace)
        async for page in self._writer.api.pages(path, f"{names.LABEL_JOB_UID}={job.metadata.uid}"):
            for body in page["items"]:
                if body["metadata"]["name"] != keep:
                    await self._writer.delete("ParallelPlan", body["metadata"]["name"], job.metadata.namespace)


def node_of_pod(job: TrainingJob) -> dict[int, str]:
    """Node by pod index, as the status has placed them."""
    shares = job.status.allocation if job.status else ()
    return {index: share.node for share in shares for index in from_ranges(share.pods)}


def pod_ref(job: TrainingJob, plan: ParallelPlan, incarnation: int, index: int, there: PodRecord | None) -> PodRef:
    """Tokens name the uid of a pod that exists already; those with which it starts are made before it."""
    ranks = tuple(range(index * plan.per_pod, (index + 1) * plan.per_pod))
    name = names.pod_name(job.metadata.name, job.metadata.uid, incarnation, index)
    return PodRef(name, ranks, there.uid if there else None)


def _job_ref(job: TrainingJob) -> JobRef:
    plugins = tuple(plugin.name for plugin in job.spec.plugins)
    return JobRef(job.metadata.namespace or "", job.metadata.name, job.metadata.uid, plugins)


def _grace(pod: PodRecord, request: StopRequest) -> int | None:
    if request.force and (not request.force_pods or pod.fact.name in request.force_pods):
        return 0
    return OVERDUE_GRACE if pod.fact.name in request.overdue_pods else None


async def together(calls: Iterable[Awaitable[Any]]) -> None:
    """Make calls side by side, a few at a time. All are made; then the first error in their order is raised."""
    limit = asyncio.Semaphore(PARALLEL)

    async def one(call: Awaitable[Any]) -> None:
        async with limit:
            await call

    outcomes = await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
