"""Strategy: pure planning. Reads no run-time state, executes nothing."""

from abc import abstractmethod

from kuangchao_contracts.audit import AuditClass
from kuangchao_contracts.base import Contract
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.plan import ParallelPlan, PlanOutcome, PlanRequest
from kuangchao_contracts.ports.base import Port, operation


class ReplanRequest(Contract):
    """Evidence from execution that a plan does not fit, and the request to plan again with it."""

    previous: ParallelPlan
    request: PlanRequest

    def audit_text(self) -> str:
        """Which plan did not fit, and the peak that was measured."""
        return f"plan {self.previous.hash} measured peak {self.request.measured_peak_bytes}"


class StrategyControl(Port):
    """Plans for the pool's shape."""

    layer = Layer.STRATEGY

    @abstractmethod
    @operation(audit=AuditClass.CONTROL)
    async def plan(self, capability: Capability, request: PlanRequest) -> PlanOutcome:
        """The plan, or why there is none, with the arithmetic."""

    @abstractmethod
    @operation(audit=AuditClass.CONTROL, one_shot=True)
    async def replan(self, capability: Capability, request: ReplanRequest) -> PlanOutcome:
        """A plan that replaces `previous`; `request.measured_peak_bytes` must be set."""
