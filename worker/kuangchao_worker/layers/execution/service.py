"""Serves the ExecutionContext to other layers. Read only."""

from kuangchao_contracts.capability import Capability
from kuangchao_contracts.ports.execution import ContextView, ExecutionRank
from kuangchao_contracts.run import Empty
from kuangchao_worker.layers.execution.context import ExecutionContext


class ExecutionService(ExecutionRank):
    """Execution's rank half."""

    def __init__(self, context: ExecutionContext) -> None:
        self._context = context

    def context(self, capability: Capability, request: Empty) -> ContextView:  # noqa: ARG002
        """See ExecutionRank."""
        return self._context.view()
