"""What a shell remembers of one job between two decisions: answers of other layers and actions already done.

Both shells (operator and local runner) keep one `JobMemory` for each job. It holds nothing that may not be lost: after a
restart the same actions are asked for again, and all of them are repeatable. Never reads a clock.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from kuangchao_contracts.base import Contract
from kuangchao_contracts.faults import FaultDecision
from kuangchao_contracts.plan import PlanOutcome
from kuangchao_operator.layers.execution.model import (
    Action,
    Assess,
    DeleteJob,
    Emit,
    Launch,
    Plan,
    RecordPlan,
    Reclaim,
    RenewTokens,
    Stop,
)

REPEAT = timedelta(seconds=5)
"""An action whose effect is not visible yet is asked for again after this time."""
MAX_DELAY = timedelta(seconds=60)


@dataclass(slots=True)
class JobMemory:
    """Process-local facts of a job, and which actions must not be done again yet."""

    outcome: PlanOutcome | None = None
    outcome_digest: str | None = None
    verdict: FaultDecision | None = None
    verdict_attempt: int = 0
    launched: tuple[int, int] | None = None
    reclaimed: bool = False
    tokens_minted_at: datetime | None = None
    _not_before: dict[str, datetime] = field(default_factory=dict)
    _failures: dict[str, int] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Keyword arguments for JobSnapshot."""
        return {"outcome": self.outcome, "outcome_digest": self.outcome_digest, "verdict": self.verdict,
                "verdict_attempt": self.verdict_attempt, "launched": self.launched, "reclaimed": self.reclaimed,
                "tokens_minted_at": self.tokens_minted_at}

    def due(self, actions: tuple[Action, ...], now: datetime) -> tuple[Action, ...]:
        """The actions that are to be done now: events always, the rest unless just done or failed a moment ago."""
        return tuple(a for a in actions if isinstance(a, Emit) or self._not_before.get(_key(a), now) <= now)

    def next_due(self, actions: tuple[Action, ...], now: datetime) -> float | None:
        """Seconds until the first action that is held back now becomes due; None when none is held back."""
        times = [self._not_before[_key(a)] for a in actions if _key(a) in self._not_before and not isinstance(a, Emit)]
        waits = [(time - now).total_seconds() for time in times if time > now]
        return min(waits, default=None)

    def done(self, action: Action, answer: Contract | None, now: datetime) -> None:
        """Note that an action succeeded, with the answer of the layer that was asked."""
        self._failures.pop(_key(action), None)
        match action:
            case Plan(request=request):
                assert isinstance(answer, PlanOutcome)
                self.outcome, self.outcome_digest = answer, request.content_hash()
            case Assess(report=report):
                assert isinstance(answer, FaultDecision)
                self.verdict, self.verdict_attempt = answer, report.attempt
            case Launch(attempt=attempt, incarnation=incarnation):
                self.launched, self.reclaimed, self.tokens_minted_at = (attempt, incarnation), False, now
            case RenewTokens():
                self.tokens_minted_at = now
            case Reclaim():
                self.reclaimed, self.launched = True, None
            case Stop() | RecordPlan() | DeleteJob():
                self._hold(action, now + REPEAT)
            case Emit():
                pass

    def failed(self, action: Action, now: datetime) -> None:
        """Note that an action failed: it is held back for 1 s, then 2, 4 ... up to a minute."""
        count = self._failures[_key(action)] = self._failures.get(_key(action), 0) + 1
        self._hold(action, now + min(timedelta(seconds=2 ** min(count - 1, 6)), MAX_DELAY))

    def _hold(self, action: Action, until: datetime) -> None:
        if len(self._not_before) >= 64:
            self._not_before.clear()
        self._not_before[_key(action)] = until


def _key(action: Action) -> str:
    return action.content_hash()
