"""The planner with the figures of this release: what operator, command line and local runner call.

The one way to plan that reads files (the shipped figures, once); `decide` takes them as values and reads nothing.
"""

from functools import cache

from kuangchao_contracts.plan import ParallelPlan, PlanOutcome, PlanRequest
from kuangchao_operator.layers.strategy import decide, validate
from kuangchao_operator.layers.strategy.footprint import shipped
from kuangchao_operator.layers.strategy.footprint.calibration import Calibration
from kuangchao_operator.layers.strategy.knowledge import Knowledge
from kuangchao_operator.layers.strategy.schedule.simulation import Simulation
from kuangchao_operator.layers.strategy.simulate import simulate_plan
from kuangchao_operator.layers.strategy.stated import right
from kuangchao_operator.layers.strategy.timing import shipped as figures


@cache
def knowledge() -> Knowledge:
    """The figures of this release."""
    return Knowledge(calibration=shipped.load(), hardware=figures.load())


class Planner:
    """Plans with the shipped figures, or with a calibration of the user's in place of the shipped one.

    What a plan depends on is in its request: the digest of a calibration that is not the shipped one is stamped on it,
    so that command line and cluster, given the same file, give the same plan with the same digest.
    """

    def __init__(self, calibration: Calibration | None = None) -> None:
        own = calibration is not None and calibration != shipped.load()
        self._knowledge = knowledge() if calibration is None else knowledge()._replace(calibration=calibration)
        self._digest = self._knowledge.calibration.content_hash() if own else ""

    def plan(self, request: PlanRequest) -> PlanOutcome:
        """The plan, or why there is none."""
        return decide.plan(self._stamped(request), self._knowledge)

    def replan(self, previous: ParallelPlan, request: PlanRequest) -> PlanOutcome:
        """A plan that needs less than `previous`, which was measured not to fit."""
        return decide.replan(previous, self._stamped(request), self._knowledge)

    def check(self, plan: ParallelPlan, request: PlanRequest) -> PlanOutcome:
        """A plan that somebody wrote for this request, with figures computed anew, or the first law that it breaks.

        What a search passed over is kept where a search for this request says the same.
        """
        asked = self._stamped(request)
        why = validate.violation(plan, asked, self._knowledge)
        if why is not None:
            return PlanOutcome(infeasible=why)
        figured = right(plan, asked, self._knowledge).plan
        own = decide.plan(asked, self._knowledge).plan if _passes_over(plan, asked) else None
        same = own is not None and own == figured.replace(alternatives=own.alternatives, rejected=own.rejected)
        return PlanOutcome(plan=own if same else figured)

    def simulate(self, plan: ParallelPlan, request: PlanRequest) -> Simulation:
        """One step of a plan that was made for this request."""
        return simulate_plan(plan, request, self._knowledge)

    def _stamped(self, request: PlanRequest) -> PlanRequest:
        return request.replace(calibration_digest=self._digest)


def _passes_over(plan: ParallelPlan, request: PlanRequest) -> bool:
    """Whether a plan has words of a search for this very request."""
    return plan.request_digest == request.content_hash() and bool(plan.alternatives or plan.rejected)


def plan(request: PlanRequest) -> PlanOutcome:
    """The plan, or why there is none."""
    return Planner().plan(request)


def replan(previous: ParallelPlan, request: PlanRequest) -> PlanOutcome:
    """A plan that needs less than `previous`, which was measured not to fit."""
    return Planner().replan(previous, request)
