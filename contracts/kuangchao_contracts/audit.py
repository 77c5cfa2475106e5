"""Audit records and the port that stores them. The record never holds a token or a request body."""

import secrets
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from kuangchao_contracts.base import Contract, ShortText, Text


class AuditClass(StrEnum):
    """How a call is recorded (docs/design.md, authority)."""

    CONTROL = "control"
    """Durable intent before acting, result after; no audit, no mutation."""
    READ = "read"
    """One record; first to be dropped, and counted, under overload."""
    STEP = "step"
    """Hash-chained operation log of the rank; head and count enter the store with each checkpoint."""
    PUBLIC = "public"
    """No token, not audited."""


class Stage(StrEnum):
    """What a record says about its operation."""

    INTENT = "intent"
    RESULT = "result"
    DENY = "deny"
    READ = "read"
    SYSTEM = "system"


class Decision(StrEnum):
    """Outcome. The initial value of anything unfinished is error."""

    ALLOW = "allow"
    DENY = "deny"
    ERROR = "error"


class AuditRecord(Contract):
    """Who did what to which resource, with which right, and how it ended."""

    v: int = 1
    ts: datetime
    opid: Annotated[str, Field(max_length=32)]
    stage: Stage
    layer: Annotated[str, Field(max_length=32)]
    op: Annotated[str, Field(max_length=64)]
    resource: Annotated[str, Field(max_length=512)]
    subject: ShortText
    issuer: ShortText = ""
    jti: Annotated[str, Field(max_length=32)] = ""
    kid: Annotated[str, Field(max_length=64)] = ""
    job: ShortText = ""
    job_uid: Annotated[str, Field(max_length=64)] = ""
    attempt: Annotated[int, Field(ge=0)] = 0
    policy: Annotated[int, Field(ge=0)] = 0
    decision: Decision
    reason: Annotated[str, Field(max_length=64)] = ""
    detail: Text = ""
    request_sha256: Annotated[str, Field(max_length=64)] = ""
    duration_us: Annotated[int, Field(ge=0)] = 0
    count: Annotated[int, Field(ge=1)] = 1
    process: Annotated[str, Field(max_length=64)] = ""


class AuditQuery(Contract):
    """Filters; all given ones must hold. `resource` matches whole segments from the left."""

    since: datetime | None = None
    until: datetime | None = None
    subject: ShortText | None = None
    operation: Annotated[str, Field(max_length=64)] | None = None
    resource: Annotated[str, Field(max_length=512)] | None = None
    result: Decision | None = None
    job: ShortText | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] = 1_000
    after: Annotated[int, Field(ge=0)] = 0
    """Cursor: only records with a higher sequence number."""


class StoredRecord(Contract):
    """A record with its place in the store; `previous` chains it to the one before."""

    seq: Annotated[int, Field(ge=1)]
    previous: Annotated[str, Field(max_length=64)]
    record: AuditRecord


class AuditPage(Contract):
    """Part of an answer; `next_after` continues it, None at the end."""

    records: tuple[StoredRecord, ...]
    next_after: int | None = None
    dropped_reads: int = 0


class AuditSink(ABC):
    """Where a gate puts its records. Implementations: SQLite writer, remote writer, a rank's operation log."""

    @abstractmethod
    async def durable(self, record: AuditRecord, consume: tuple[str, int, int] | None = None) -> None:
        """Store a record so that it survives a crash. `consume` is (jti, exp, iat) of a one-shot, used up in the same
        transaction. Raises AuditUnavailableError, ReplayedTokenError, ReplayStoreLostError; then nothing was stored."""

    @abstractmethod
    def best_effort(self, record: AuditRecord) -> None:
        """Store a successful read when there is room; otherwise count it as dropped."""

    @abstractmethod
    def step(self, op: str, resource: str, subject: str, request: Contract) -> None:
        """Append a step call to the operation log; called on the training thread, must take microseconds."""

    def step_done(self, response: Contract) -> None:  # noqa: B027 - most sinks keep nothing of it
        """The step call that was logged last has been made; how much it did is in the response's `audit_text`."""

    @abstractmethod
    def step_denied(self, record: AuditRecord) -> None:
        """Keep the denial of a step call; never dropped, handed to the store with the next report."""


def new_opid() -> str:
    """Identifier that ties the intent and the result of one operation together."""
    return secrets.token_hex(12)


def now() -> datetime:
    """Current UTC time with microseconds."""
    return datetime.now(UTC)
