"""What a local run came to. A value; the command line turns it into text, JSON and an exit code."""

from kuangchao_contracts.api.trainingjob import Failure
from kuangchao_contracts.base import Contract
from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.reasons import Phase


class AuditSummary(Contract):
    """What the audit store holds of the run."""

    records: int
    denied: int
    operations: dict[str, int]
    """Calls that were carried out, by operation."""


class RunResult(Contract):
    """The end of a run."""

    job: str
    phase: Phase
    reason: str
    message: str
    plan: str | None
    attempts: int
    restarts: int
    steps: int
    metrics: dict[str, str]
    failure: Failure | None
    """The first failure, also of a run that recovered from it."""
    checkpoints: tuple[CheckpointRef, ...]
    audit: AuditSummary
    directory: str
    interrupted: bool = False
