"""Operation logs as a rank would write them."""

from pathlib import Path

from kuangchao_contracts.audit import AuditRecord, Decision, Stage, now
from kuangchao_contracts.oplog import OperationLog
from kuangchao_contracts.oplogfile import LINES_PER_PART, LogFile
from kuangchao_contracts.ports.state import SubmitGradients
from tests.unit.authority.kit import RESOURCE

SUBJECT = "rank:team-a/digits/w-0"


def fill(log: OperationLog, first: int, last: int) -> None:
    """One call for each of these steps."""
    for step in range(first, last + 1):
        log.step("state.submit_gradients", RESOURCE, SUBJECT, SubmitGradients(step_id=step))


def write(directory: Path, steps: int, *, rank: int = 0, lines_per_part: int = LINES_PER_PART) -> OperationLog:
    """A whole log of attempt 1."""
    with OperationLog() as log:
        log.keep_in(LogFile(directory, 1, rank, lines_per_part))
        fill(log, 1, steps)
    return log


def denial(reason: str = "StaleEpoch") -> AuditRecord:
    """A call that was refused."""
    return AuditRecord(
        ts=now(), opid="1", stage=Stage.DENY, layer="state", op="state.save", resource=RESOURCE, subject=SUBJECT,
        decision=Decision.DENY, reason=reason,
    )  # fmt: skip
