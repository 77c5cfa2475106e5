"""Facts of a fault and the decision on it; exchanged between execution and state."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from kuangchao_contracts.api.trainingjob import Failure
from kuangchao_contracts.base import Contract, ShortText
from kuangchao_contracts.reasons import Reason


class FaultReport(Contract):
    """One incident: all failures of one attempt together, the first one first."""

    reason: Reason
    attempt: Annotated[int, Field(ge=0)]
    failures: Annotated[tuple[Failure, ...], Field(max_length=64)]
    pods_alive: bool
    """Whether every pod of the incarnation still runs, so that its agents can start ranks again."""
    nodes_lost: Annotated[tuple[ShortText, ...], Field(max_length=64)] = ()
    estimated_peak_bytes: Annotated[int, Field(ge=0)] | None = None
    """What the plan of the attempt says that its fullest device needs; None: nothing was estimated."""

    @property
    def measured_peak_bytes(self) -> int | None:
        """The highest peak of a rank that ran out of memory; None: none did, or nobody could measure it."""
        peaks = (f.peak_memory_bytes for f in self.failures if f.reason == Reason.OUT_OF_MEMORY)
        return max((peak for peak in peaks if peak is not None), default=None)

    def audit_text(self) -> str:
        """What happened, as the decision sees it."""
        counts = f"failures {len(self.failures)} lost nodes {len(self.nodes_lost)}"
        return f"attempt {self.attempt} reason {self.reason} {counts}"


class Recovery(StrEnum):
    """What to do about a fault, mildest first."""

    RESTART_RANKS = "RestartRanks"
    """Same pods, new attempt: agents end their ranks, join again and restore."""
    NEW_PODS = "NewPods"
    """New incarnation and attempt for the whole gang, placed anew."""
    REPLAN = "Replan"
    """As NewPods, under another plan: this one did not fit, and would not another time."""
    SUSPEND = "Suspend"
    FAIL = "Fail"


class FaultDecision(Contract):
    """The verdict of the state layer. `charged`: the restart uses the user's budget."""

    recovery: Recovery
    reason: Reason
    message: Annotated[str, Field(max_length=1024)]
    charged: bool
    avoid_nodes: Annotated[tuple[ShortText, ...], Field(max_length=64)] = ()
    measured_peak_bytes: Annotated[int, Field(ge=0)] | None = None
    """With REPLAN: what strategy is to plan with."""

    def audit_text(self) -> str:
        """The verdict."""
        peak = f" measured peak {self.measured_peak_bytes}" if self.measured_peak_bytes is not None else ""
        return f"{self.recovery} reason {self.reason} {'charged' if self.charged else 'not charged'}{peak}"
