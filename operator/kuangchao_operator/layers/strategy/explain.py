"""A plan for people and for programs: the text and the JSON of `kuangchao plan`. Pure."""

from typing import Any, Final

from kuangchao_contracts.parallel import StepEstimate
from kuangchao_contracts.plan import Infeasible, ParallelPlan, PlanOutcome, RejectedAxis, StageMemory
from kuangchao_contracts.planwords import over
from kuangchao_contracts.ranges import to_ranges
from kuangchao_contracts.units import human_bytes
from kuangchao_operator.layers.strategy.search.words import PARTS
from kuangchao_operator.layers.strategy.shown import duration, percent

AXES: Final = (
    "tensor",
    "pipeline",
    "data",
    "context",
    "expert",
    "sequence",
    "virtualStages",
    "microBatch",
    "recompute",
    "sharding",
    "accumulationSteps",
    "globalBatch",
    "worldSize",
    "perPod",
    "pods",
    "managed",
)
PPM: Final = 1_000_000


def plan_json(outcome: PlanOutcome) -> dict[str, Any]:
    """The documented JSON of a plan; the same keys whether feasible or not, null where there is no value."""
    plan, why = outcome.plan, outcome.infeasible
    stages = plan.memory if plan is not None else why.memory if why is not None else ()
    rejected = plan.rejected if plan is not None else why.rejected if why is not None else ()
    return {
        "feasible": plan is not None,
        **_axes(plan),
        "memory": {
            "checked": plan.memory_checked if plan is not None else bool(stages),
            "deviceBytes": plan.device_memory_bytes if plan is not None else None,
            "stages": [_stage(stage) for stage in stages],
        },
        "stepSeconds": _step_seconds(plan),
        "step": plan.step.wire() if plan is not None and plan.step is not None else None,
        "bubbleFraction": plan.bubble_ppm / PPM if plan is not None else None,
        "placement": [rule.wire() for rule in plan.placement] if plan is not None else [],
        "alternatives": [alternative.wire() for alternative in plan.alternatives] if plan is not None else [],
        "rejected": [axis.wire() for axis in rejected],
        "plan": plan.wire() if plan is not None else None,
        "hash": plan.hash if plan is not None else None,
        "reason": why.reason if why is not None else None,
        "message": why.message if why is not None else None,
        "field": why.field if why is not None else None,
        "value": why.value if why is not None else None,
        "nearest": why.nearest if why is not None else None,
    }


def _axes(plan: ParallelPlan | None) -> dict[str, Any]:
    wire = plan.wire() if plan is not None else {}
    return {
        **{name: wire.get(name) for name in AXES},
        # left out of the wire form where they are at their defaults
        "schedule": plan.schedule.value if plan is not None else None,
        "stageLayers": list(plan.stage_layers) if plan is not None else None,
        "expertTensor": plan.expert_tensor if plan is not None else None,
        "shardRanks": plan.shard_ranks if plan is not None else None,
        "objective": plan.objective.value if plan is not None else None,
    }


def _stage(stage: StageMemory) -> dict[str, Any]:
    return {**stage.wire(), "arithmetic": list(stage.arithmetic)}


def _step_seconds(plan: ParallelPlan | None) -> float | None:
    return plan.step_microseconds / PPM if plan is not None and plan.step_microseconds is not None else None


def render_plan(outcome: PlanOutcome) -> str:
    """Some lines of text, without a trailing newline."""
    if outcome.plan is not None:
        return "\n".join(_feasible(outcome.plan))
    assert outcome.infeasible is not None, "an outcome has a plan or a reason"
    return "\n".join(_infeasible(outcome.infeasible))


def _feasible(plan: ParallelPlan) -> list[str]:
    lines = [
        f"Plan {plan.summary()} ({plan.hash[:8]}): {_several(plan.world_size, 'rank')} in {_several(plan.pods, 'pod')}"
        f" of {plan.per_pod}",
        *_split(plan),
        _batch(plan),
        *_step(plan),
    ]
    if not plan.memory_checked:
        lines.append("Memory: not checked (no model descriptor, or the device's memory is unknown)")
    lines += _stages(plan.memory, plan.device_memory_bytes, single=plan.pipeline == 1)
    lines += [f"Passed over: {a.summary}: {a.reason}" for a in plan.alternatives]
    return lines + _rejected(plan.rejected)


def _several(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _split(plan: ParallelPlan) -> list[str]:
    """How the model is cut and what is saved; nothing for plain data parallelism."""
    words = []
    if plan.tensor > 1:
        words.append("sequence parallelism" if plan.sequence else "no sequence parallelism")
    if plan.pipeline > 1:
        chunks = f", {plan.virtual_stages} chunks a stage" if plan.virtual_stages > 1 else ""
        words.append(f"pipeline in order {plan.schedule.value}{chunks}")
    if plan.stage_layers:
        words.append(f"layers of the stages {_runs(plan.stage_layers)}")
    if plan.expert > 1 or plan.expert_tensor > 1:
        words.append(f"experts over {plan.expert} ranks, each divided by {plan.expert_tensor}")
    if words or plan.recompute.value != "none" or plan.sharding.value != "none":
        words += [f"recompute {plan.recompute.value}", f"sharding {plan.sharding.value}{over(plan.shard_ranks)}"]
    return [f"Split: {'; '.join(words)}"] if words else []


def _runs(sizes: tuple[int, ...]) -> str:
    """Equal neighbours together: "4, 14 x 5, 4"."""
    words, start = [], 0
    for place in range(1, len(sizes) + 1):
        if place == len(sizes) or sizes[place] != sizes[start]:
            times = place - start
            words.append(f"{times} x {sizes[start]}" if times > 1 else f"{sizes[start]}")
            start = place
    return ", ".join(words)


def _batch(plan: ParallelPlan) -> str:
    if not plan.managed:
        return f"Batch: split by the command; memory is estimated for {plan.micro_batch} samples a rank"
    accumulated = f" x {plan.accumulation_steps} accumulated" if plan.accumulation_steps > 1 else ""
    ranks = "data-parallel ranks" if plan.data != plan.world_size else "ranks"
    return f"Batch: {plan.global_batch} = micro-batch {plan.micro_batch} x {plan.data} {ranks}{accumulated}"


def _step(plan: ParallelPlan) -> list[str]:
    """Time of a step with its parts, largest first, and how well the devices are used."""
    step = plan.step
    if step is None:
        return [f"Step: time not known; bubble {percent(plan.bubble_ppm)}"] if plan.pipeline > 1 else []
    return [f"Step: {duration(step.step_us)}: {_parts(step)}", f"Use: {_use(step)}"]


def _parts(step: StepEstimate) -> str:
    sizes = sorted(((getattr(step, name), word) for name, word in PARTS.items()), key=lambda part: -part[0])
    return ", ".join(f"{word} {duration(size)}" for size, word in sizes if size)


def _use(step: StepEstimate) -> str:
    recomputed = f", with recomputation (HFU) {percent(step.hfu_ppm)}" if step.hfu_ppm != step.mfu_ppm else ""
    return f"MFU {percent(step.mfu_ppm)}{recomputed}; bubble {percent(step.bubble_ppm)} of the step"


def _infeasible(why: Infeasible) -> list[str]:
    lines = [f"{why.reason}: {why.message}", *_stages(why.memory, None, single=len(why.memory) == 1)]
    if why.nearest is not None:
        lines.append(f"Nearest that would do: {why.field} {why.nearest}")
    return lines + _rejected(why.rejected)


def _stages(stages: tuple[StageMemory, ...], device: int | None, *, single: bool) -> list[str]:
    """The fullest stage with its calculation, the others by their figures."""
    fullest = max(stages, key=lambda stage: (stage.reserved_bytes, -stage.stage), default=None)
    lines: list[str] = []
    for stage in stages:
        lines.append(_memory(stage, device, single=single))
        if stage is fullest:
            lines += [f"  {line}" for line in stage.arithmetic]
    return lines


def _memory(stage: StageMemory, device: int | None, *, single: bool) -> str:
    of = f" of {human_bytes(device)}" if device else ""
    use, reserved = human_bytes(stage.total_bytes), human_bytes(stage.reserved_bytes)
    numbers = to_ranges(range(stage.stage, (stage.last_stage or stage.stage) + 1))
    where = "Memory of a device" if single else f"Memory of a device of stage {numbers}"
    return f"{where}: {use} in use, {reserved} reserved{of}"


def _rejected(rejected: tuple[RejectedAxis, ...]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for axis in rejected:
        by_reason.setdefault(axis.reason, []).append(axis.axis)
    return [f"Not used: {', '.join(axes)} ({reason})" for reason, axes in by_reason.items()]
