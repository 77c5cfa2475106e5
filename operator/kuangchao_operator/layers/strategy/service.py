"""Strategy's side of its port: hands requests to the pure planner and its answers back."""

from kuangchao_contracts.capability import Capability
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import PlanOutcome, PlanRequest
from kuangchao_contracts.ports.strategy import ReplanRequest, StrategyControl
from kuangchao_operator.layers.strategy.shipped import Planner


class StrategyService(StrategyControl):
    """Plans on the event loop: the search tries one micro-batch for each divisor of the batch, well under 1 ms."""

    def __init__(self, planner: Planner | None = None) -> None:
        """`planner`: with whose figures; those of this release if it is left out."""
        self._planner = planner or Planner()

    async def plan(self, capability: Capability, request: PlanRequest) -> PlanOutcome:  # noqa: ARG002 - the port's shape
        """The plan, or why there is none."""
        return self._planner.plan(request)

    async def replan(self, capability: Capability, request: ReplanRequest) -> PlanOutcome:  # noqa: ARG002
        """A plan that needs less than the one that did not fit. Raises InvalidInputError without a measured peak."""
        if request.request.measured_peak_bytes is None:
            raise InvalidInputError("request.measuredPeakBytes", None, "a plan is replaced on a measured peak only")
        return self._planner.replan(request.previous, request.request)
