"""A plan for people and for programs: the text and the JSON of `kuangchao plan`. Pure."""

from typing import Any

from kuangchao_contracts.plan import Infeasible, ParallelPlan, PlanOutcome, RejectedAxis, StageMemory
from kuangchao_contracts.units import human_bytes


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
        "bubbleFraction": plan.bubble_ppm / 1_000_000 if plan is not None else None,
        "alternatives": [alternative.wire() for alternative in plan.alternatives] if plan is not None else [],
        "rejected": [axis.wire() for axis in rejected],
        "hash": plan.hash if plan is not None else None,
        "reason": why.reason if why is not None else None,
        "message": why.message if why is not None else None,
        "field": why.field if why is not None else None,
        "value": why.value if why is not None else None,
        "nearest": why.nearest if why is not None else None,
    }


_AXIS_FIELDS = (
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


def _axes(plan: ParallelPlan | None) -> dict[str, Any]:
    wire = plan.wire() if plan is not None else {}
    return {name: wire.get(name) for name in _AXIS_FIELDS}


def _stage(stage: StageMemory) -> dict[str, Any]:
    return {**stage.wire(), "arithmetic": list(stage.arithmetic)}


def _step_seconds(plan: ParallelPlan | None) -> float | None:
    return plan.step_microseconds / 1_000_000 if plan is not None and plan.step_microseconds is not None else None


def render_plan(outcome: PlanOutcome) -> str:
    """Some lines of text, without a trailing newline."""
    if outcome.plan is not None:
        return "\n".join(_feasible(outcome.plan))
    assert outcome.infeasible is not None, "an outcome has a plan or a reason"
    return "\n".join(_infeasible(outcome.infeasible))


def _feasible(plan: ParallelPlan) -> list[str]:
    accumulated = f" x {plan.accumulation_steps} accumulated" if plan.accumulation_steps > 1 else ""
    lines = [
        f"Plan {plan.summary()} ({plan.hash[:8]}): {plan.world_size} ranks in {plan.pods} pods of {plan.per_pod}",
        f"Batch: {plan.global_batch} = micro-batch {plan.micro_batch} x {plan.data} ranks{accumulated}"
        if plan.managed
        else f"Batch: split by the command; memory is estimated for {plan.micro_batch} samples a rank",
    ]
    if not plan.memory_checked:
        lines.append("Memory: not checked (no model descriptor, or the device's memory is unknown)")
    for stage in plan.memory:
        lines += _memory(stage, plan.device_memory_bytes)
    lines += [f"Passed over: {a.summary}: {a.reason}" for a in plan.alternatives]
    return lines + _rejected(plan.rejected)


def _infeasible(why: Infeasible) -> list[str]:
    lines = [f"{why.reason}: {why.message}"]
    for stage in why.memory:
        lines += _memory(stage, None)
    if why.nearest is not None:
        lines.append(f"Nearest that would do: {why.field} {why.nearest}")
    return lines + _rejected(why.rejected)


def _memory(stage: StageMemory, device: int | None) -> list[str]:
    of = f" of {human_bytes(device)}" if device else ""
    use, reserved = human_bytes(stage.total_bytes), human_bytes(stage.reserved_bytes)
    head = f"Memory of a device: {use} in use, {reserved} reserved{of}"
    return [head, *(f"  {line}" for line in stage.arithmetic)]


def _rejected(rejected: tuple[RejectedAxis, ...]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for axis in rejected:
        by_reason.setdefault(axis.reason, []).append(axis.axis)
    return [f"Not used: {', '.join(axes)} ({reason})" for reason, axes in by_reason.items()]
