"""Which plans this worker carries out. It refuses any other, also one that a person wrote: never runs it another way.

What stands here has passed the parity tests: the same loss as one process, on real links.
"""

from collections.abc import Iterator
from typing import Final

from torch._C._distributed_c10d import DebugLevel, get_debug_level  # torch.distributed has them, not for type checkers

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.parallel import IN_ROUNDS, ZERO_BUBBLE, Schedule
from kuangchao_contracts.plan import ParallelPlan, Recompute, Sharding
from kuangchao_contracts.rules import ParallelRules, TaskRule

CHUNKS: Final = {
    Schedule.GPIPE: (1, 1),
    Schedule.ONE_F_ONE_B: (1, 1),
    Schedule.INTERLEAVED: (2, 1_048_576),
    Schedule.ZERO_BUBBLE_H1: (1, 1),
    Schedule.ZERO_BUBBLE_V: (2, 2),
}
"""Schedules of a pipeline, with the fewest and the most stages of the model on each rank."""


def require_runnable(plan: ParallelPlan, rules: ParallelRules) -> None:
    """Raise InvalidInputError naming the first field of the plan that cannot be carried out."""
    for field, value, why, nearest in _problems(plan, rules):
        raise InvalidInputError(f"plan.{field}", value, why, nearest)


def require_debuggable(plan: ParallelPlan, *, gloo: bool) -> None:
    """Raise InvalidInputError where torch's own checks of collectives would end the process: DDP over gloo."""
    if gloo and plan.world_size > 1 and whole(plan) and get_debug_level() == DebugLevel.DETAIL:
        why = "has torch's DDP end the process by a segmentation fault where links are gloo's"
        raise InvalidInputError("TORCH_DISTRIBUTED_DEBUG", "DETAIL", why, "INFO")


def _problems(plan: ParallelPlan, rules: ParallelRules) -> Iterator[tuple[str, object, str, object]]:
    if plan.tensor > 1 and TaskRule.TENSOR not in rules.allowed:
        yield "tensor", plan.tensor, "the task has no rules.tensor", 1
    if plan.sequence and TaskRule.SEQUENCE not in rules.allowed:
        yield "sequence", True, "the task's rules.tensor have no module of style sequence or whole", False
    if plan.context > 1 and TaskRule.CONTEXT not in rules.allowed:
        yield "context", plan.context, "the task has no rules.tokens", 1
    yield from _experts(plan, rules)
    yield from _stages(plan)
    if plan.sequence and plan.tensor == 1:
        yield "sequence", True, "needs tensor parallelism", False


def _experts(plan: ParallelPlan, rules: ParallelRules) -> Iterator[tuple[str, object, str, object]]:
    if plan.expert_tensor > 1:
        yield "expertTensor", plan.expert_tensor, "this worker does not divide the matrices of an expert", 1
    alone = plan.sharding is not Sharding.NONE and plan.shard_ranks == 1 < plan.data * plan.context
    if alone and TaskRule.EXPERT in rules.allowed and plan.tensor >= 2 * plan.expert:
        yield "shardRanks", 1, "shards experts over tensor ranks, and nothing beside them", 0
    if plan.expert == 1:
        return
    if TaskRule.EXPERT not in rules.allowed:
        yield "expert", plan.expert, "the task has no rules.experts", 1
    if plan.tensor > 1 and not plan.sequence:
        yield "sequence", False, "would have every tensor rank send the same tokens to the experts", True


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
    if plan.schedule in IN_ROUNDS and count % rounds:
        why = f"{plan.schedule.value} is run in {rounds} rounds of equally many micro-batches"
        yield "accumulationSteps", count, why, count - count % plan.pipeline
    if plan.schedule in ZERO_BUBBLE and plan.recompute is not Recompute.NONE:
        why = f"torch recomputes once, and {plan.schedule.value} goes back through a stage twice"
        yield "recompute", plan.recompute.value, why, Recompute.NONE.value


def whole(plan: ParallelPlan) -> bool:
    """Whether every rank holds the whole model."""
    shards = plan.shard_ranks or plan.data * plan.context
    return plan.tensor == plan.pipeline == plan.expert == 1 and (plan.sharding is Sharding.NONE or shards == 1)
