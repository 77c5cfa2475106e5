"""`kuangchao plan`: the plan that the operator would make, offline. Starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_operator.cli.output import DONE, REFUSED, Format, Output, emit_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kuangchao_contracts.api import ResourceDescriptorObject, ResourcePool, TrainingJob
    from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
    from kuangchao_contracts.descriptor import NodeDescriptor
    from kuangchao_contracts.plan import PlanOutcome
    from kuangchao_operator.layers.strategy.shipped import Planner

Calibrated = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Calibration that `kuangchao calibrate` wrote. Default: this release's."),
]
File = Annotated[
    str, typer.Argument(metavar="FILE", help="Manifest of a TrainingJob; - reads standard input.", show_default=False)
]


def plan(
    file: File,
    resources: Annotated[
        str | None,
        typer.Option(
            help="File with ResourceDescriptors and ResourcePools to plan for; "
            "every descriptor in it counts. Default: this machine."
        ),
    ] = None,
    calibration: Calibrated = None,
    output: Output = Format.TEXT,
) -> None:
    """Show a job's plan, or why there is none; needs no cluster.

    The memory estimate comes with its arithmetic. `kubectl get resourcepools,resourcedescriptors -o json` makes a
    file for --resources. Exits 3 when infeasible.

    JSON: {feasible, tensor, pipeline, data, context, expert, sequence, virtualStages, microBatch, recompute, sharding,
    memory: {stages: [{parametersBytes, gradientsBytes, optimizerBytes, activationsBytes, otherBytes, totalBytes,
    reservedBytes, arithmetic}]}, stepSeconds, bubbleFraction, alternatives: [], rejected: [{axis, reason}], reason,
    message, field, value, nearest}
    """
    from kuangchao_operator.cli.manifest import read_job, read_resources
    from kuangchao_operator.layers.strategy.explain import plan_json, render_plan

    job, planner = read_job(file), _planner(calibration)
    if resources is None:
        outcome = plan_here(job, planner)
    else:
        outcome = plan_for(job, *read_resources(resources), planner)
    if output is Format.JSON:
        emit_json(plan_json(outcome))
    else:
        print(render_plan(outcome))
    raise typer.Exit(DONE if outcome.plan is not None else REFUSED)


def _planner(calibration: str | None) -> Planner:
    from pathlib import Path

    from kuangchao_operator.layers.strategy.footprint.calibration import parse
    from kuangchao_operator.layers.strategy.shipped import Planner

    return Planner(None if calibration is None else parse(Path(calibration).read_bytes(), calibration))


def plan_here(job: TrainingJob, planner: Planner) -> PlanOutcome:
    """The plan that `kuangchao run` would use on this machine."""
    from kuangchao_operator.local.pool import local_pool

    pool = local_pool(job)
    for note in pool.notes:
        typer.echo(note, err=True)
    return _outcome(job, pool.spec, [pool.descriptor], planner)


def plan_for(
    job: TrainingJob,
    descriptors: Sequence[ResourceDescriptorObject],
    pools: Sequence[ResourcePool],
    planner: Planner,
) -> PlanOutcome:
    """The plan for described resources. Raises InvalidInputError when they do not hold the job's pool."""
    nodes = [item.spec for item in descriptors]
    if not nodes:
        raise InvalidInputError(
            "--resources",
            "no ResourceDescriptor",
            "nothing is known of any node",
            "kubectl get resourcepools,resourcedescriptors -o json",
        )
    return _outcome(job, _pool_of(job, pools, nodes), nodes, planner)


def _pool_of(job: TrainingJob, pools: Sequence[ResourcePool], nodes: Sequence[NodeDescriptor]) -> ResourcePoolSpec:
    from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
    from kuangchao_contracts.descriptor import DeviceKind
    from kuangchao_operator.cli.explain import nearest_word

    wanted = job.spec.pool
    found = {pool.metadata.name: pool.spec for pool in pools}
    if wanted in found:
        return found[wanted]
    if found:
        raise InvalidInputError("spec.pool", wanted, "is not in --resources", nearest_word(wanted, found) or min(found))
    gpus = any(device.kind is DeviceKind.GPU for node in nodes for device in node.devices)
    return ResourcePoolSpec(device_type=job.spec.devices.type or (DeviceKind.GPU if gpus else DeviceKind.CPU))


def _outcome(
    job: TrainingJob, pool: ResourcePoolSpec, nodes: Sequence[NodeDescriptor], planner: Planner
) -> PlanOutcome:
    from kuangchao_operator.layers.resource.decide import shapes
    from kuangchao_operator.layers.strategy.requests import plan_request

    return planner.plan(plan_request(job.spec, pool, shapes(pool, tuple(nodes))))
