"""What torch runs for a plan is what the planner has counted: same order, same stages on each rank, same refusals.

torch's schedules of one stage do not run from an order that could be read, so theirs is not compared.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.pipelining._backward import stage_backward

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import ParallelPlan, Recompute
from kuangchao_contracts.rules import ParallelRules
from kuangchao_operator.layers.strategy.schedule.orders import orders, placement
from kuangchao_operator.layers.strategy.schedule.passes import Kind, Pass
from kuangchao_worker.layers.execution.pipe import ONE_STAGE, STAGES, PipeRunner
from kuangchao_worker.layers.state.chain import stages_on
from kuangchao_worker.rank.runnable import CHUNKS, require_runnable
from tests.unit.worker.fakegate import make_plan

KINDS = {"F": Kind.FORWARD, "B": Kind.BACKWARD, "I": Kind.BACKWARD, "W": Kind.WEIGHT}


def planned(schedule: Schedule, pipeline: int, virtual: int, count: int) -> ParallelPlan:
    sizes = {"pipeline": pipeline, "virtual_stages": virtual, "schedule": schedule, "data": 1}
    return make_plan(pipeline, batch=count * pipeline, accumulation=count, **sizes)


def of_torch(plan: ParallelPlan) -> Any:
    """torch's schedule for a plan, over stages that have no modules."""
    count = plan.pipeline * plan.virtual_stages
    made = [
        SimpleNamespace(stage_index=n, num_stages=count, group_size=plan.pipeline, group_rank=0, submod=None)
        for n in stages_on(plan, 0)
    ]
    if plan.schedule in ONE_STAGE:
        return ONE_STAGE[plan.schedule](made[0], plan.accumulation_steps)  # type: ignore[arg-type] # a stand-in
    return STAGES[plan.schedule](made, plan.accumulation_steps)  # type: ignore[arg-type] # as above


@pytest.mark.parametrize("schedule", STAGES)
@pytest.mark.parametrize(
    ("pipeline", "chunks", "count"), [(2, 2, 4), (2, 3, 3), (3, 4, 9), (4, 2, 8), (4, 3, 10), (4, 2, 7), (8, 2, 16)]
)
def test_the_order_is_the_one_that_the_planner_counts(
    schedule: Schedule, pipeline: int, chunks: int, count: int
) -> None:
    fewest, most = CHUNKS[schedule]
    plan = planned(schedule, pipeline, min(max(chunks, fewest), most), count)
    shape = plan.pipeline, plan.virtual_stages
    where = placement(plan.schedule, *shape)
    theirs = of_torch(plan).pipeline_order
    for rank, order in enumerate(orders(plan.schedule, *shape, plan.accumulation_steps)):
        assert stages_on(plan, rank) == tuple(where.piece(rank, chunk) for chunk in range(plan.virtual_stages))
        found = [
            Pass(KINDS[action.computation_type.value], action.microbatch_index, action.stage_index // plan.pipeline)
            for action in theirs[rank]
            if action is not None and action.is_compute_op
        ]
        assert found == list(order)


@pytest.mark.parametrize("schedule", CHUNKS)
def test_what_torch_refuses_is_refused_before(schedule: Schedule) -> None:
    refused = set()
    for pipeline in (2, 3, 4):
        for count in range(pipeline, 14):
            plan = planned(schedule, pipeline, CHUNKS[schedule][0], count)
            try:
                of_torch(plan)
            except ValueError:
                refused.add((pipeline, count))
                with pytest.raises(InvalidInputError, match="accumulationSteps") as error:
                    require_runnable(plan, ParallelRules())
                nearest = planned(schedule, pipeline, CHUNKS[schedule][0], error.value.nearest)  # type: ignore[arg-type]
                require_runnable(nearest, ParallelRules())
                of_torch(nearest)
            else:
                require_runnable(plan, ParallelRules())
    assert ((2, 5) in refused) == (schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE_H1))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (planned(Schedule.ZERO_BUBBLE_H2, 2, 1, 4), "schedule='zb-h2': torch has no such order"),
        (planned(Schedule.ZERO_BUBBLE_V, 2, 3, 4), "virtualStages=3.*nearest legal value: 2"),
        (planned(Schedule.ONE_F_ONE_B, 2, 2, 4), "virtualStages=2.*nearest legal value: 1"),
        (planned(Schedule.INTERLEAVED, 1, 2, 4), "virtualStages=2: the plan has no pipeline"),
        (
            planned(Schedule.ZERO_BUBBLE_H1, 2, 1, 4).model_copy(update={"recompute": Recompute.FULL}),
            "recompute='full': torch recomputes once.*nearest legal value: none",
        ),
        (planned(Schedule.ZERO_BUBBLE_V, 2, 2, 1), "accumulationSteps=1: leaves stages without work"),
    ],
)
def test_what_no_worker_runs_is_refused(plan: ParallelPlan, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        require_runnable(plan, ParallelRules())


class Broken(torch.autograd.Function):
    """A backward pass that fails."""

    @staticmethod
    def forward(_: Any, given: torch.Tensor) -> torch.Tensor:
        return given.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise InvalidInputError("task.loss", gradient.item(), "is too much")


def own() -> None:
    raise RuntimeError("the task's own") from ValueError("and its cause")


def in_a_stage() -> None:
    given = torch.ones(1, requires_grad=True)
    stage_backward(Broken.apply(given), None, [given])


@pytest.mark.parametrize(("act", "kind"), [(in_a_stage, InvalidInputError), (own, RuntimeError)])
def test_what_is_raised_in_a_stage_comes_out_as_it_is(act: Any, kind: type[Exception]) -> None:
    """torch raises an error of its own instead, by which neither want of memory nor a lost peer would be known."""
    runner = PipeRunner.__new__(PipeRunner)
    runner.first, runner.last, runner._schedule = False, False, SimpleNamespace(step=lambda **_: act())
    with pytest.raises(kind) as error:
        runner.step([], lambda output, _: output)
    assert type(error.value) is kind
