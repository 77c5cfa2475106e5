"""`kuangchao plan`: the plan that the operator would make, offline. Starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_operator.cli import simulate as simulation
from kuangchao_operator.cli.output import DONE, REFUSED, Format, Output, emit_json
from kuangchao_operator.cli.simulate import Simulate, To
from kuangchao_operator.cli.what_if import Objective, WhatIf, wished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kuangchao_contracts.api import ResourcePool, TrainingJob
    from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
    from kuangchao_contracts.descriptor import NodeDescriptor
    from kuangchao_contracts.plan import PlanRequest
    from kuangchao_operator.layers.strategy.shipped import Planner

Calibrated = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Calibration that `kuangchao calibrate` wrote. Default: this release's."),
]
Checked = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Judge this plan (a ParallelPlan, or what `plan -o json` wrote) in place of a search.",
        show_default=False,
    ),
]
File = Annotated[
    str, typer.Argument(metavar="FILE", help="Manifest of a TrainingJob; - reads standard input.", show_default=False)
]
Devices = Annotated[
    int | None, typer.Option(min=1, help="Another number of devices than the manifest's.", show_default=False)
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
    devices: Devices = None,
    calibration: Calibrated = None,
    what_if: WhatIf = False,
    objective: Objective = None,
    check: Checked = None,
    simulate: Simulate = None,
    to: To = None,
    output: Output = Format.TEXT,
) -> None:
    """Show a job's plan, or why there is none; needs no cluster.

    The memory estimate comes with its arithmetic, the time of a step with its parts where the devices are known, and
    whatever was passed over with a reason. `kubectl get resourcepools,resourcedescriptors -o json` makes a
    file for --resources. Exits 3 when infeasible.

    With --check the plan of a file, perhaps written by hand, is judged in place of a search: by every law, its groups
    and schedule, and all figures computed anew: what it states must be so, what it leaves out is filled in.

    JSON: {feasible, tensor, pipeline, data, context, expert, sequence, virtualStages, microBatch, recompute, sharding,
    memory: {stages: [{parametersBytes, gradientsBytes, optimizerBytes, activationsBytes, otherBytes, totalBytes,
    reservedBytes, arithmetic}]}, stepSeconds, bubbleFraction, alternatives: [], rejected: [{axis, reason}], reason,
    message, field, value, nearest}; with --simulate also simulation: {microBatches, simulatedMicroBatches,
    stepSeconds, bubbleFraction, steadyBubbleFraction, stages: [{stage, busyFraction}]}
    """
    from kuangchao_operator.cli.manifest import read_job
    from kuangchao_operator.cli.plan_diff_command import read_plan
    from kuangchao_operator.layers.strategy.explain import plan_json, render_plan
    from kuangchao_operator.layers.strategy.simulate import simulation_json

    simulation.check(simulate, to, output)
    job, planner = with_devices(read_job(file), devices), _planner(calibration)
    found = request_here(job) if resources is None else request_for(job, resources)
    request = wished(found, what_if, objective)
    outcome = planner.plan(request) if check is None else planner.check(read_plan(check, "--check"), request)
    step = planner.simulate(outcome.plan, request) if simulate is not None and outcome.plan is not None else None
    if output is Format.JSON:
        emit_json(plan_json(outcome) | ({} if step is None else {"simulation": simulation_json(step)}))
    elif step is None or not simulation.alone(simulate, to):
        print(render_plan(outcome), end="\n" if step is None or to is not None else "\n\n")
    if step is not None and simulate is not None:
        simulation.draw(step, simulate, to, output)
    raise typer.Exit(DONE if outcome.plan is not None else REFUSED)


def _planner(calibration: str | None) -> Planner:
    from kuangchao_operator.cli.files import read_bytes
    from kuangchao_operator.layers.strategy.footprint.calibration import parse
    from kuangchao_operator.layers.strategy.shipped import Planner

    return Planner(None if calibration is None else parse(read_bytes("--calibration", calibration), calibration))


def with_devices(job: TrainingJob, count: int | None) -> TrainingJob:
    """The job on another number of devices, if one is given. Raises InvalidInputError unless that is whole pods."""
    if count is None:
        return job
    devices = job.spec.devices
    if count % devices.per_pod:
        nearest = max(devices.per_pod, round(count / devices.per_pod) * devices.per_pod)
        raise InvalidInputError("--devices", count, f"must be a multiple of devices.perPod {devices.per_pod}", nearest)
    wanted = devices.replace(count=count, min=None, max=None)
    return job.replace(spec=job.spec.replace(devices=wanted))


def request_here(job: TrainingJob) -> PlanRequest:
    """What `kuangchao run` would ask for a plan on this machine."""
    from kuangchao_operator.local.pool import local_pool

    pool = local_pool(job)
    for note in pool.notes:
        typer.echo(note, err=True)
    return _request(job, pool.spec, [pool.descriptor])


def request_for(job: TrainingJob, resources: str) -> PlanRequest:
    """What to ask for a plan for the resources of a file. Raises InvalidInputError, as when it lacks the job's pool."""
    from kuangchao_operator.cli.manifest import RESOURCES, read_resources

    descriptors, pools = read_resources(resources)
    nodes = [item.spec for item in descriptors]
    if not nodes:
        why = "holds no ResourceDescriptor: nothing is known of any node"
        raise InvalidInputError(RESOURCES, resources, why, "kubectl get resourcepools,resourcedescriptors -o json")
    return _request(job, _pool_of(job, pools, nodes), nodes)


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


def _request(job: TrainingJob, pool: ResourcePoolSpec, nodes: Sequence[NodeDescriptor]) -> PlanRequest:
    from kuangchao_operator.layers.resource.decide import shapes
    from kuangchao_operator.layers.strategy.requests import plan_request

    return plan_request(job.spec, pool, shapes(pool, tuple(nodes)))
