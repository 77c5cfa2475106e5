"""What a rank's gate has to say to the world: denials and calls on an overdue lease, by way of the agent.

Nothing is lost while the agent lives: what could not be sent is sent with the next. Decides nothing.
"""

import logging
import threading
import time
from collections.abc import Callable

from kuangchao_contracts.audit import AuditRecord, Decision
from kuangchao_contracts.oplog import OperationLog
from kuangchao_contracts.run import RankNote
from kuangchao_worker.pod.channel import NOTE_SECONDS, NOTES_PER_MESSAGE, RankChannel, RankMessage

log = logging.getLogger("kuangchao.rank")


class GateReporter:
    """Speaks for the gate of one rank."""

    def __init__(
        self,
        channel: RankChannel,
        rank: int,
        attempt: int,
        oplog: OperationLog,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel, self._rank, self._attempt, self._oplog = channel, rank, attempt, oplog
        self._monotonic = monotonic
        self._unsent: list[RankNote] = []
        self._sending = threading.Lock()
        """Code of a task may be refused something on a thread of its own."""
        self._overdue_since: float | None = None
        self._overdue_seconds = 0.0

    def lease(self, overdue: bool) -> None:
        """The lease has expired and nobody renewed it, so the grace period runs; or that is over."""
        self._oplog.grace(overdue)
        now = self._monotonic()
        if overdue:
            self._overdue_since = now
            log.warning("LeaseOverdue: rank %d goes on with a lease that has expired", self._rank)
        elif self._overdue_since is not None:
            self._overdue_seconds += now - self._overdue_since
            self._overdue_since = None
            log.warning("LeaseOverdue is over after %.0f s in all", self._overdue_seconds)
        self._channel.reliable(
            RankMessage(
                rank=self._rank, lease_overdue=overdue, lease_overdue_seconds=round(self._overdue_seconds) or None
            ),
            NOTE_SECONDS,
        )
        self.notes()

    def notes(self) -> None:
        """Hand over what the gate has noted since the last time."""
        with self._sending:
            self._hand_over()

    def _hand_over(self) -> None:
        self._unsent += [rank_note(record, self._rank, self._attempt) for record in self._oplog.take_notes()]
        while self._unsent:
            batch = tuple(self._unsent[:NOTES_PER_MESSAGE])
            if not self._channel.reliable(RankMessage(rank=self._rank, notes=batch), NOTE_SECONDS):
                return
            del self._unsent[: len(batch)]


def rank_note(record: AuditRecord, rank: int, attempt: int) -> RankNote:
    """A record of the rank's gate as it travels with heartbeats."""
    return RankNote(
        rank=rank,
        attempt=attempt,
        op=record.op,
        resource=record.resource,
        subject=record.subject,
        reason=record.reason,
        allowed=record.decision is Decision.ALLOW,
        count=record.count,
        first=record.ts,
        jti=record.jti,
    )
