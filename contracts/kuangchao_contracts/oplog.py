"""Operation log of one rank: each step call is chained to the one before by a hash.

Nothing is written on the hot path; head and count enter the audit store with heartbeats and checkpoints, so a log that
was cut, reordered or extended afterwards no longer leads to the recorded head.
"""

import hashlib

from kuangchao_contracts.audit import AuditRecord, AuditSink
from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import AuditUnavailableError

GENESIS = "0" * 64
MAX_DENIALS = 1_024


def link(head: str, op: str, resource: str, subject: str, request: Contract) -> str:
    """The head after one more call."""
    entry = "\n".join((head, op, resource, subject)).encode() + b"\n" + request.canonical()
    return hashlib.sha256(entry).hexdigest()


class OperationLog(AuditSink):
    """The sink of a rank's gate: step calls only, so it refuses to promise durability."""

    def __init__(self) -> None:
        self.head = GENESIS
        self.count = 0
        self.denied: list[AuditRecord] = []
        self.denied_dropped = 0

    async def durable(self, record: AuditRecord, consume: tuple[str, int, int] | None = None) -> None:
        """See AuditSink. A rank has no durable store, and control calls are not made in a rank."""
        raise AuditUnavailableError("a rank keeps an operation log only")

    def best_effort(self, record: AuditRecord) -> None:
        """See AuditSink. Reads inside a rank are step calls; there is nothing to keep."""

    def step(self, op: str, resource: str, subject: str, request: Contract) -> None:
        """See AuditSink."""
        self.head = link(self.head, op, resource, subject, request)
        self.count += 1

    def step_denied(self, record: AuditRecord) -> None:
        """See AuditSink. The first ones are kept whole, all are counted."""
        if len(self.denied) < MAX_DENIALS:
            self.denied.append(record)
        else:
            self.denied_dropped += 1
