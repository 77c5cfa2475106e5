"""Recorded plans: the present one while the job holds devices, and the newest one that ran out of memory."""

from typing import Any

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.trainingjob import MemoryFailure
from kuangchao_contracts.plan import DeviceShape, ParallelPlan, PlanRequest, TrainingSpec
from kuangchao_operator.kube.effects import plan_manifest
from kuangchao_operator.kube.plans import KubePlans
from tests.unit.execution.world import World, make_plan

SHAPES = (DeviceShape(kind="cpu", memory_bytes=2**30, per_node=4, nodes=2),)
PLAN = make_plan(PlanRequest(devices=2, per_pod=1, shapes=SHAPES, training=TrainingSpec()))


class Api:
    """An API server that has these plans of the job, and counts how often it is asked."""

    def __init__(self, job: TrainingJob, *plans: ParallelPlan) -> None:
        self.bodies = {(body := plan_manifest(job, plan))["metadata"]["name"]: body for plan in plans}
        self.asked = 0

    async def get(self, path: str) -> dict[str, Any] | None:
        self.asked += 1
        return self.bodies.get(path.rsplit("/", 1)[-1])


def failed(job: TrainingJob, plan: ParallelPlan, **status: Any) -> TrainingJob:
    failure = MemoryFailure(plan="dp2", plan_hash=plan.hash, wish="w", measured_bytes=1, attempt=1)
    assert job.status is not None
    return job.replace(status=job.status.replace(out_of_memory=(failure,), **status))


async def test_the_plan_that_failed_is_read_once_whether_or_not_the_job_holds_devices() -> None:
    world = World().run()
    api: Any = Api(world.job, PLAN)
    plans, job = KubePlans(api), failed(world.job, PLAN, allocation=(), plan_hash=None)
    assert await plans.failed(job) == PLAN
    assert await plans.failed(job) == PLAN
    assert await plans.plan(job) is None
    assert api.asked == 1
    other = PLAN.replace(micro_batch=2)
    assert await plans.failed(failed(world.job, other)) is None, "the newest one counts, and its object is gone"
    plans.forget(job.metadata.uid)
    assert await plans.failed(job) == PLAN
    assert api.asked == 3


async def test_a_job_that_never_ran_out_of_memory_costs_nothing() -> None:
    world = World().run()
    api: Any = Api(world.job)
    assert await KubePlans(api).failed(world.job) is None
    assert api.asked == 0
