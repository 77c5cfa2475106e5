"""The planner with the figures of this release: what operator, command line and local runner call.

The one way to plan that reads files (the shipped figures, once); `decide` takes them as values and reads nothing.
"""

from functools import cache

from kuangchao_contracts.plan import ParallelPlan, PlanOutcome, PlanRequest
from kuangchao_operator.layers.strategy import decide
from kuangchao_operator.layers.strategy.footprint import shipped
from kuangchao_operator.layers.strategy.knowledge import Knowledge


@cache
def knowledge() -> Knowledge:
    """The figures of this release."""
    return Knowledge(calibration=shipped.load())


def plan(request: PlanRequest) -> PlanOutcome:
    """The plan, or why there is none."""
    return decide.plan(request, knowledge())


def replan(previous: ParallelPlan, request: PlanRequest) -> PlanOutcome:
    """A plan that needs less than `previous`, which was measured not to fit."""
    return decide.replan(previous, request, knowledge())
