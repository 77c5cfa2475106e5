"""What the loop of one job remembers between passes: answers of other layers, and which actions were done or failed.

Lost with the process, and nothing here may not be lost: the same actions are asked for again, and all can be repeated.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import ChildRefusedError
from kuangchao_contracts.faults import FaultDecision
from kuangchao_contracts.plan import PlanOutcome
from kuangchao_operator.layers.execution import limits
from kuangchao_operator.layers.execution.model import (
    Action,
    Assess,
    DeleteJob,
    Launch,
    Plan,
    Reclaim,
    RecordPlan,
    RenewTokens,
    Replan,
    Stop,
    StopDone,
)

REPEAT: Final = timedelta(seconds=5)
"""An action whose effect the watch has not shown yet is not done again within this time."""
FIRST_DELAY: Final = timedelta(seconds=1)
MAX_DELAY: Final = timedelta(seconds=60)


@dataclass(slots=True)
class JobMemory:
    """Facts of a job that only its loop knows."""

    outcome: PlanOutcome | None = None
    outcome_digest: str | None = None
    verdict: FaultDecision | None = None
    verdict_attempt: int = 0
    tokens_minted_at: datetime | None = None
    tokens_late_at: datetime | None = None
    launched: tuple[int, int] | None = None
    reclaimed: bool = False
    stop_done: StopDone | None = None
    refusal: ChildRefusedError | None = None
    _taken_back: bool = False
    """Whether what the workers hold was taken back, and nothing minted since."""
    _not_before: dict[str, datetime] = field(default_factory=dict)
    _failures: dict[str, int] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Fields of JobSnapshot."""
        return {
            "outcome": self.outcome,
            "outcome_digest": self.outcome_digest,
            "verdict": self.verdict,
            "verdict_attempt": self.verdict_attempt,
            "tokens_minted_at": self.tokens_minted_at,
            "tokens_late_at": self.tokens_late_at,
            "launched": self.launched,
            "reclaimed": self.reclaimed,
            "stop_done": self.stop_done,
            "child_error": str(self.refusal) if self.refusal else None,
            "child_error_final": self.refusal is not None and self.refusal.final,
        }

    def due(self, action: Action, now: datetime) -> bool:
        """Whether an action may be done now: it was not done, and did not fail, a moment ago."""
        return self._not_before.get(action.content_hash(), now) <= now

    def failing(self, action: Action) -> bool:
        """Whether the last try of an action failed."""
        return action.content_hash() in self._failures

    def next_due(self, actions: tuple[Action, ...], now: datetime) -> float | None:
        """Seconds until the first of these actions that is held back may be done; None when none is."""
        times = (self._not_before.get(action.content_hash(), now) for action in actions)
        return min(((time - now).total_seconds() for time in times if time > now), default=None)

    def done(self, action: Action, answer: Contract | None, now: datetime) -> None:
        """Note that an action succeeded, with the answer of the layer that was asked."""
        self._failures.pop(action.content_hash(), None)
        match action:
            case Plan(request=request) | Replan(request=request) if isinstance(answer, PlanOutcome):
                self.outcome, self.outcome_digest = answer, request.content_hash()
            case Assess(report=report) if isinstance(answer, FaultDecision):
                self.verdict, self.verdict_attempt = answer, report.attempt
            case Launch(attempt=attempt, incarnation=incarnation):
                self.launched, self.reclaimed, self.refusal = (attempt, incarnation), False, None
                self.tokens_minted_at = now
            case RenewTokens():
                before, self.tokens_minted_at = self.tokens_minted_at, now
                aged = before is not None and (now - before).total_seconds() >= limits.LEASES_OUT
                if aged or self._taken_back:
                    self.tokens_late_at, self._taken_back = now, False
            case Reclaim():
                self.reclaimed, self.launched = True, None
            case Stop():
                self.stop_done = StopDone(stop=action, at=now)
            case RecordPlan() | DeleteJob():
                self._hold(action, now + REPEAT)
            case _:
                pass

    def failed(self, action: Action, error: Exception, now: datetime) -> None:
        """Note that an action failed: it is held back for 1 s, then 2, 4 ... up to a minute."""
        if isinstance(error, ChildRefusedError):
            self.refusal = error
        key = action.content_hash()
        count = self._failures[key] = self._failures.get(key, 0) + 1
        self._hold(action, now + min(FIRST_DELAY * 2 ** min(count - 1, 6), MAX_DELAY))

    def outdate_tokens(self, now: datetime) -> None:
        """What was minted is not good any more: from now on it counts as old enough to be minted anew, and agents are
        refused until they have been given the new."""
        if self.tokens_minted_at is not None:
            self.tokens_minted_at = min(self.tokens_minted_at, now - timedelta(seconds=limits.TOKEN_RENEWAL))
            self.tokens_late_at, self._taken_back = now, True

    def forgive(self) -> None:
        """The owner changed the job: what failed may work now."""
        self._not_before.clear()

    def _hold(self, action: Action, until: datetime) -> None:
        if len(self._not_before) >= 64:
            self._not_before.clear()
            self._failures.clear()
        self._not_before[action.content_hash()] = until
