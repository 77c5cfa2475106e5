"""Recorded plans: the ParallelPlan objects of jobs. A recorded plan never changes, so each is read once."""

from kuangchao_contracts import names
from kuangchao_contracts.api import ParallelPlanObject, TrainingJob
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_operator.kube import paths
from kuangchao_operator.kube.client import KubeApi
from kuangchao_operator.layers.execution.launcher import PlanSource
from kuangchao_operator.shell.fencing import ended


class KubePlans(PlanSource):
    """The plan of each job that holds devices, and its newest one that did not fit, by the job's uid."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._plans: dict[str, ParallelPlan] = {}
        self._failed: dict[str, ParallelPlan] = {}

    async def plan(self, job: TrainingJob) -> ParallelPlan | None:
        """The plan that the status names; None when there is none, or when its object is not there or another's."""
        status, uid = job.status, job.metadata.uid
        if status is None or status.plan_hash is None or not status.allocation or ended(status):
            return None
        known = self._plans.get(uid)
        if known is None or known.hash != status.plan_hash:
            known = await self._read(job, status.plan_hash)
        if known is not None:
            self._plans[uid] = known
        return known

    async def failed(self, job: TrainingJob) -> ParallelPlan | None:
        """The newest plan that ran out of memory; None when there is none, or its object is gone."""
        status, uid = job.status, job.metadata.uid
        if status is None or not status.out_of_memory or ended(status):
            return None
        wanted = status.out_of_memory[-1].plan_hash
        known = self._failed.get(uid)
        if known is None or known.hash != wanted:
            known = await self._read(job, wanted)
        if known is not None:
            self._failed[uid] = known
        return known

    def remember(self, job_uid: str, plan: ParallelPlan) -> None:
        """The plan was just recorded."""
        self._plans[job_uid] = plan

    def forget(self, job_uid: str) -> None:
        """The job is over: its plan is not needed any more."""
        self._plans.pop(job_uid, None)
        self._failed.pop(job_uid, None)

    async def _read(self, job: TrainingJob, plan_hash: str) -> ParallelPlan | None:
        name = names.plan_name(job.metadata.name, job.metadata.uid, plan_hash)
        body = await self._api.get(paths.item("ParallelPlan", name, job.metadata.namespace))
        if body is None:
            return None
        plan = ParallelPlanObject.model_validate(body).spec.plan
        return plan if plan.hash == plan_hash else None
