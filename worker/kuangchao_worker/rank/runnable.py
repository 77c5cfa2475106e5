"""Which plans this worker carries out. It refuses any other, also one that a person wrote: never runs it another way.

What stands here has passed the parity tests: the same loss as one process, on real links.
"""

from collections.abc import Iterator
from typing import Final

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import ParallelPlan, Sharding
from kuangchao_contracts.rules import ParallelRules

NOT_BUILT: Final = ("context", "expert", "expert_tensor", "virtual_stages")
SCHEDULES: Final = (Schedule.GPIPE, Schedule.ONE_F_ONE_B)
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
    if plan.pipeline > 1 and plan.schedule not in SCHEDULES:
        yield "schedule", plan.schedule.value, "this worker runs one chunk of layers per stage", SCHEDULES[-1].value
    if plan.accumulation_steps < plan.pipeline:
        yield "accumulationSteps", plan.accumulation_steps, "leaves stages without work", plan.pipeline
    if plan.sequence and plan.tensor == 1:
        yield "sequence", True, "needs tensor parallelism", False


def whole(plan: ParallelPlan) -> bool:
    """Whether every rank holds the whole model."""
    shards = plan.shard_ranks or plan.data
    return plan.tensor == plan.pipeline == 1 and (plan.sharding is Sharding.NONE or shards == 1)
