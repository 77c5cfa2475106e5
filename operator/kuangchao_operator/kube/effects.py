"""Effects of the job loop that no layer owns: finalizer, ParallelPlan object, Events, deletion after the end."""

import logging
from typing import Any

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.errors import ConflictError, KuangchaoError
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_operator.kube.cache import Cache
from kuangchao_operator.kube.events import EventWriter
from kuangchao_operator.kube.plans import KubePlans
from kuangchao_operator.kube.writer import Writer
from kuangchao_operator.layers.execution.children import child_metadata
from kuangchao_operator.layers.execution.launcher import Launcher
from kuangchao_operator.layers.execution.model import Emit
from kuangchao_operator.shell.ports import Effects

logger = logging.getLogger(__name__)


class KubeEffects(Effects):
    """Effects on the API server."""

    def __init__(self, writer: Writer, cache: Cache, plans: KubePlans, events: EventWriter, launcher: Launcher) -> None:
        self._writer, self._cache, self._plans = writer, cache, plans
        self._events, self._launcher = events, launcher

    def held(self, job: TrainingJob) -> bool:
        """Whether our finalizer is on the object as last seen."""
        record = self._cache.jobs.get(job.metadata.name, job.metadata.namespace or "")
        return record is not None and record.job.metadata.uid == job.metadata.uid and record.held

    async def hold(self, job: TrainingJob) -> None:
        """Put our finalizer on the object. A queued job has none: without children it needs no cleaning up."""
        if self.held(job):
            return
        if job.metadata.deletion_timestamp is not None:
            raise ConflictError("the job is being deleted")
        await self._finalizer(job, present=True)

    async def release(self, job: TrainingJob) -> None:
        """Take our finalizer off the object."""
        await self._finalizer(job, present=False)
        self._plans.forget(job.metadata.uid)

    async def record_plan(self, job: TrainingJob, plan: ParallelPlan) -> None:
        """Create the job's ParallelPlan; it is immutable and named by its hash, so one that exists is the same."""
        await self._writer.create(plan_manifest(job, plan), job.metadata.uid)
        self._plans.remember(job.metadata.uid, plan)

    async def renew_tokens(self, job: TrainingJob, attempt: int, incarnation: int) -> None:
        """Let the launcher rewrite the Secret."""
        await self._launcher.renew_tokens(job, attempt, incarnation)

    async def emit(self, job: TrainingJob, event: Emit) -> None:
        """Write an Event; one that cannot be written is logged, no more."""
        try:
            await self._events.emit(owner_of(job), event)
        except KuangchaoError as error:
            logger.warning("event %s of job %s was not written: %s", event.reason, job.metadata.name, error)

    async def delete_job(self, job: TrainingJob) -> None:
        """Delete this very object."""
        metadata = job.metadata
        await self._writer.delete("TrainingJob", metadata.name, metadata.namespace, uid=metadata.uid)

    async def _finalizer(self, job: TrainingJob, *, present: bool) -> None:
        body = await self._writer.finalizer(owner_of(job), present=present)
        if body is not None:
            self._cache.see("TrainingJob", body)


def owner_of(job: TrainingJob) -> dict[str, Any]:
    """The identifying part of a job's manifest."""
    metadata = job.metadata
    return {
        "apiVersion": names.API_VERSION,
        "kind": "TrainingJob",
        "metadata": {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid},
    }


def plan_manifest(job: TrainingJob, plan: ParallelPlan) -> dict[str, Any]:
    """The ParallelPlan object of a job."""
    metadata = job.metadata
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ParallelPlan",
        "metadata": child_metadata(job, names.plan_name(metadata.name, metadata.uid, plan.hash), {}),
        "spec": {"job": metadata.name, "hash": plan.hash, "summary": plan.summary(), "plan": plan.wire()},
    }
