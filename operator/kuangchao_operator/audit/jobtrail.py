"""What the audit store says of one job: its control calls in order, and what each commit has pinned. Pure."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from kuangchao_contracts.audit import AuditRecord, Decision, Stage, StoredRecord
from kuangchao_contracts.claims import SYSTEM
from kuangchao_contracts.oplogcheck import Pin

COMMIT: Final = "state.commit_checkpoint"
UNFINISHED: Final = "unfinished"
_TEXT: Final = re.compile(r"step (\d+) attempt (\d+) manifest ([0-9a-f]{64})(?: (.*))?")
_HEAD: Final = re.compile(r"rank(\d{1,7})=(\d{1,20}):([0-9a-f]{0,64})")
_DIGEST: Final = re.compile(r"oplogs of \d+ ranks sha256=")


@dataclass(frozen=True, slots=True)
class Call:
    """One operation: the record of its intent and, once there is one, of its result."""

    seq: int
    began: AuditRecord
    ended: AuditRecord | None

    @property
    def last(self) -> AuditRecord:
        """The newest word on it."""
        return self.ended or self.began

    @property
    def result(self) -> str:
        """How it ended."""
        return UNFINISHED if self.ended is None and self.began.stage is Stage.INTENT else self.last.decision.value

    @property
    def commit(self) -> "Commit | None":
        """What it has pinned, if it is a commit that took place."""
        if self.began.op != COMMIT or self.result != Decision.ALLOW:
            return None
        # the intent's text is the request's; that of the result has the answer behind it
        found = _TEXT.match(self.began.detail)
        return Commit(self.seq, int(found[1]), int(found[2]), found[3], found[4] or "") if found else None


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint that entered the ledger. `heads`: the text about operation logs in the record."""

    seq: int
    step: int
    attempt: int
    manifest: str
    heads: str

    @property
    def pins(self) -> dict[int, Pin] | None:
        """Count and head of each rank's operation log; None when they are in the manifest only."""
        if _DIGEST.match(self.heads):
            return None
        return {int(rank): (int(count), head) for rank, count, head in _HEAD.findall(self.heads)}


@dataclass(slots=True)
class JobTrail:
    """Everything that the store says of one job."""

    uid: str
    calls: list[Call] = field(default_factory=list)
    others: tuple[str, ...] = ()
    """Uids of other jobs that had the same name."""

    @property
    def commits(self) -> list[Commit]:
        """In the order of the store. A commit that was repeated is there once."""
        found = {c.manifest: c for call in reversed(self.calls) if (c := call.commit) is not None}
        return sorted(found.values(), key=lambda commit: commit.seq)

    @property
    def began(self) -> datetime | None:
        """Time of the first call."""
        return self.calls[0].began.ts if self.calls else None


def trail(records: Iterable[StoredRecord], uid: str | None = None) -> JobTrail:
    """The trail of the newest job among these records, or of the one with this uid.

    Calls of layers outside any attempt name no uid: they belong to the job that comes next, or still goes on.
    """
    found = list(_once(records))
    places: dict[str, list[int]] = {}
    for item in found:
        if _names_a_job(item.record):
            places.setdefault(item.record.job_uid, []).append(item.seq)
    uids = list(places)
    chosen = uid or (uids[-1] if uids else "")
    own = places.get(chosen, [])
    after = max((seq for other in uids for seq in places[other] if own and other != chosen and seq < own[0]), default=0)
    until = own[-1] if own and chosen != uids[-1] else None
    mine = [
        item
        for item in found
        if item.record.job_uid == chosen
        or (not _names_a_job(item.record) and after < item.seq and (until is None or item.seq < until))
    ]
    return JobTrail(chosen, _calls(mine), tuple(other for other in uids if other != chosen))


def _names_a_job(record: AuditRecord) -> bool:
    return record.job_uid not in ("", SYSTEM)


def _once(records: Iterable[StoredRecord]) -> Iterator[StoredRecord]:
    """Without notes of ranks that an operator stored twice, because it was restarted before it had answered."""
    seen: set[str] = set()
    for item in records:
        if item.record.process.startswith("rank/"):
            if item.record.opid in seen:
                continue
            seen.add(item.record.opid)
        yield item


def _calls(records: list[StoredRecord]) -> list[Call]:
    ends = {item.record.opid: item.record for item in records if item.record.stage is Stage.RESULT}
    begun = {item.record.opid for item in records if item.record.stage is Stage.INTENT}
    calls = []
    for item in records:
        record = item.record
        if record.stage is Stage.INTENT:
            calls.append(Call(item.seq, record, ends.get(record.opid)))
        elif record.stage is not Stage.RESULT or record.opid not in begun:
            calls.append(Call(item.seq, record, record))
    return calls
