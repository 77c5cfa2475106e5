"""What the loop of one job remembers between passes. Lost with the process: everything here can be found out again."""

from dataclasses import dataclass
from datetime import datetime

from kuangchao_contracts.faults import FaultDecision
from kuangchao_contracts.plan import PlanOutcome
from kuangchao_operator.layers.execution.model import JobSnapshot


@dataclass(slots=True)
class JobMemory:
    """Answers of other layers and outcomes of actions."""

    outcome: PlanOutcome | None = None
    outcome_digest: str | None = None
    verdict: FaultDecision | None = None
    verdict_attempt: int = 0
    tokens_minted_at: datetime | None = None
    launched: tuple[int, int] | None = None
    child_error: str | None = None
    child_error_final: bool = False
    reclaimed: bool = False

    def overlay(self, snapshot: JobSnapshot) -> JobSnapshot:
        """The snapshot with what is remembered. Copied without validation: every value was validated when it came."""
        return snapshot.model_copy(
            update={
                "outcome": self.outcome,
                "outcome_digest": self.outcome_digest,
                "verdict": self.verdict,
                "verdict_attempt": self.verdict_attempt,
                "tokens_minted_at": self.tokens_minted_at,
                "launched": self.launched,
                "child_error": self.child_error,
                "child_error_final": self.child_error_final,
            }
        )

    def refused(self, message: str, *, final: bool) -> None:
        """A child was refused by the API server."""
        self.child_error, self.child_error_final = message, final

    def accepted(self) -> None:
        """Children were accepted."""
        self.child_error, self.child_error_final = None, False
