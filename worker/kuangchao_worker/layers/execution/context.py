"""The ExecutionContext: where a rank is in its run. Written by the executor only, read through the gate."""

from collections import deque
from typing import Final

from kuangchao_contracts.ports.execution import ContextView

REMEMBERED: Final = 64


class ExecutionContext:
    """Position and the last operations of one rank, in order."""

    def __init__(self) -> None:
        self.step = 0
        self.epoch = 0
        self.samples = 0
        self.section = "init"
        self._operations: deque[str] = deque(maxlen=REMEMBERED)

    def enter(self, section: str) -> None:
        """Begin a named part of the run; hangs are judged by it."""
        self.section = section

    def done(self, operation: str) -> None:
        """Note an operation that has ended."""
        self._operations.append(operation)

    def view(self) -> ContextView:
        """A frozen copy."""
        return ContextView(
            step=self.step,
            epoch=self.epoch,
            samples=self.samples,
            section=self.section,
            operations=tuple(self._operations),
        )
