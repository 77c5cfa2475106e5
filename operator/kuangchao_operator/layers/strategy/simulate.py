"""One step of a plan, run: times of its chunks on the slowest device it may get, then the schedule. Pure."""

from typing import Any

from kuangchao_contracts.plan import ParallelPlan, PlanRequest, TransformerModel
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.knowledge import Knowledge
from kuangchao_operator.layers.strategy.schedule.run import ChunkTime, Tail, Times
from kuangchao_operator.layers.strategy.schedule.simulation import Simulation, simulate
from kuangchao_operator.layers.strategy.schedule.timeline import PPM
from kuangchao_operator.layers.strategy.search.plans import setting_of
from kuangchao_operator.layers.strategy.timing.machine import machine_of
from kuangchao_operator.layers.strategy.timing.stage import StageTime, stage_times


def simulate_plan(plan: ParallelPlan, request: PlanRequest, known: Knowledge) -> Simulation:
    """The step of a plan that was made for a request.

    Without a model of layers, or on a device of which nothing is known, all passes are taken as equally long.
    """
    end = plan.step
    tails = () if end is None else (Tail(end.data_us, end.optimizer_us),) * plan.pipeline
    return simulate(
        plan.schedule,
        plan.pipeline,
        plan.virtual_stages,
        plan.accumulation_steps,
        _times(plan, request, known),
        tails=tails,
    )


def simulation_json(step: Simulation) -> dict[str, Any]:
    """The documented JSON of a simulation; seconds are null where no time is known."""
    return {
        "microBatches": step.micro_batches,
        "simulatedMicroBatches": step.simulated,
        "stepSeconds": step.step_us / PPM if step.timed else None,
        "bubbleFraction": step.bubble_ppm / PPM,
        "steadyBubbleFraction": step.steady_bubble_ppm / PPM,
        "stages": [
            {"stage": stage, "busyFraction": step.busy_ppm(stage) / PPM} for stage in range(step.timeline.stages)
        ],
    }


def _times(plan: ParallelPlan, request: PlanRequest, known: Knowledge) -> Times | None:
    if plan.step is None or not isinstance(request.model, TransformerModel):
        return None
    setting = setting_of(plan, request)
    machines = [machine_of(shape, known.hardware) for shape in laws.hosts(request)]
    found = [stage_times(setting, machine, known.hardware) for machine in machines if machine is not None]
    slowest = max(found, key=lambda chunks: sum(one.forward_us + one.backward_us + one.weight_us for one in chunks))
    return _by_stage(slowest, plan)


def _by_stage(chunks: tuple[StageTime, ...], plan: ParallelPlan) -> Times:
    rows: list[list[ChunkTime]] = [[] for _ in range(plan.pipeline)]
    for one in chunks:
        rows[one.stage].append(ChunkTime(one.forward_us, one.backward_us, one.weight_us, one.send_us))
    return rows
