"""Which plans this worker carries out. It refuses any other, also one that a person wrote: never runs it another way.

What stands here has passed the parity tests: the same loss as one process, on real links.
"""

from collections.abc import Iterator
from typing import Final

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import ParallelPlan, Recompute, Sharding
from kuangchao_contracts.rules import ParallelRules

NOT_BUILT: Final = ("context", "expert", "expert_tensor")
CHUNKS: Final = {
    Schedule.GPIPE: (1, 1),
    Schedule.ONE_F_ONE_B: (1, 1),
    Schedule.INTERLEAVED: (2, 1_048_576),
    Schedule.ZERO_BUBBLE_H1: (1, 1),
    Schedule.ZERO_BUBBLE_V: (2, 2),
}
"""Schedules of a pipeline, with the fewest and the most stages of the model on each rank."""
ROUNDS: Final = (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE_H1)
"""Schedules that torch runs in rounds of equally many micro-batches."""
APART: Final = (Schedule.ZERO_BUBBLE_H1, Schedule.ZERO_BUBBLE_V)
"""Schedules with the gradients of weights apart: they go back through a stage twice."""
SHARDINGS: Final = (Sharding.NONE, Sharding.FULL)


def require_runnable(plan: ParallelPlan, rules: ParallelRules) -> None:
    """Raise InvalidInputError naming the first field of the plan that cannot be carried out."""
    for field, value, why, nearest in _problems(plan, rules):
        raise InvalidInputError(f"plan.{field}", value, why, nearest)


def _problems(plan: ParallelPlan, rules: ParallelRules) -> Iterator[tuple[str, object, str, object]]:
    for field in NOT_BUILT:
        if getattr(plan, field) != 1:
            yield field, getattr(plan, field), "this worker does not split that way", 1
    if plan.sharding not in SHARDINGS:
        yield "sharding", plan.sharding.value, "this worker shards all states or none", Sharding.FULL.value
    if plan.tensor > 1 and not rules.tensor:
        yield "tensor", plan.tensor, "the task has no rules.tensor", 1
    yield from _stages(plan)
    if plan.sequence and plan.tensor == 1:
        yield "sequence", True, "needs tensor parallelism", False


def _stages(plan: ParallelPlan) -> Iterator[tuple[str, object, str, object]]:
    if plan.pipeline == 1:
        if plan.virtual_stages != 1:
            yield "virtualStages", plan.virtual_stages, "the plan has no pipeline", 1
        return
    if plan.schedule not in CHUNKS:
        yield "schedule", plan.schedule.value, "torch has no such order", Schedule.ZERO_BUBBLE_H1.value
        return
    chunks, count, (fewest, most) = plan.virtual_stages, plan.accumulation_steps, CHUNKS[plan.schedule]
    if not fewest <= chunks <= most:
        yield "virtualStages", chunks, f"no number of stages on a rank for {plan.schedule.value}", fewest
    if count < plan.pipeline:
        yield "accumulationSteps", count, "leaves stages without work", plan.pipeline
    rounds = max(1, count // plan.pipeline)
    if plan.schedule in ROUNDS and count % rounds:
        why = f"{plan.schedule.value} is run in {rounds} rounds of equally many micro-batches"
        yield "accumulationSteps", count, why, count - count % plan.pipeline
    if plan.schedule in APART and plan.recompute is not Recompute.NONE:
        why = f"torch recomputes once, and {plan.schedule.value} goes back through a stage twice"
        yield "recompute", plan.recompute.value, why, Recompute.NONE.value


def whole(plan: ParallelPlan) -> bool:
    """Whether every rank holds the whole model."""
    shards = plan.shard_ranks or plan.data
    return plan.tensor == plan.pipeline == 1 and (plan.sharding is Sharding.NONE or shards == 1)
