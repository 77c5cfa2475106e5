"""From a job's wish and its pool's shape to the planner's input: the one place where operator, CLI and local runner
agree on what a plan depends on. Pure."""

from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
from kuangchao_contracts.api.trainingjob import TrainingJobSpec
from kuangchao_contracts.plan import DeviceShape, PlanRequest


def plan_request(spec: TrainingJobSpec, pool: ResourcePoolSpec, shapes: tuple[DeviceShape, ...]) -> PlanRequest:
    """The request for a job on a pool. Shapes are put in order, the one of pools, so that it cannot change the plan."""
    wanted = (spec.devices.type or pool.device_type).value
    fitting = sorted(
        (s for s in shapes if s.kind == wanted),
        key=lambda s: (s.model, s.memory_bytes, s.per_node, s.nodes, s.canonical()),
    )
    return PlanRequest(
        devices=spec.devices.count,
        per_pod=spec.devices.per_pod,
        shapes=tuple(fitting),
        model=spec.model,
        training=spec.training,
        parallelism=spec.parallelism,
        managed=spec.task is not None,
        plugged=bool(spec.plugins),
    )
