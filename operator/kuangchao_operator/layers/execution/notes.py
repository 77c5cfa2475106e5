"""What the gates inside a pod's ranks have noted, as records for the audit store. Pure.

The word of a worker: it can lie about itself, so a record says who reported it, and nothing is decided from it. It can
lie about nobody else: names and resources of other jobs never get into a record's indexed fields.
"""

import hashlib
from datetime import datetime

from kuangchao_contracts.audit import AuditRecord, Decision, Stage
from kuangchao_contracts.claims import Claims
from kuangchao_contracts.errors import FutureEpochError
from kuangchao_contracts.gate import printable
from kuangchao_contracts.names import job_resource
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.run import RankNote, RankNotes

UNVERIFIED = "unverified"


def records(claims: Claims, pod_index: int, notes: RankNotes, now: datetime) -> list[AuditRecord]:
    """One record per note, always the same for the same batch: its operation id tells a repeated one.

    Raises FutureEpochError for notes of an attempt that has not begun.
    """
    if any(note.attempt > claims.att for note in notes.notes):
        raise FutureEpochError("a note is of an attempt that has not begun")
    return [
        _record(claims, note, _opid(claims, pod_index, notes.seq, place), now) for place, note in enumerate(notes.notes)
    ]


def _record(claims: Claims, note: RankNote, opid: str, now: datetime) -> AuditRecord:
    known = OPERATIONS.get(note.op)
    own = job_resource(claims.ns, claims.job)
    foreign = "" if note.resource == own else f" on {note.resource}"
    return AuditRecord(
        ts=now,
        opid=opid,
        stage=Stage.SYSTEM if note.allowed else Stage.DENY,
        layer=known.layer.value if known else "unknown",
        op=note.op if known else printable(note.op, 64),
        resource=own,
        subject=_subject(claims, note.subject),
        jti=note.jti,
        job=claims.job,
        job_uid=claims.juid,
        attempt=note.attempt,
        decision=Decision.ALLOW if note.allowed else Decision.DENY,
        reason=note.reason,
        detail=printable(f"reported by {claims.sub}, first at {note.first.isoformat()}{foreign}", 1024),
        count=note.count,
        process=f"rank/{note.rank}",
    )


def _subject(claims: Claims, said: str) -> str:
    """The subject, if it belongs to the reporter's own job; whoever else was named is not accused on its word."""
    role, _, rest = said.partition(":")
    own = role in ("agent", "rank") and rest.startswith(f"{claims.ns}/{claims.job}/")
    return printable(said, 256) if own else UNVERIFIED


def _opid(claims: Claims, pod_index: int, seq: int, place: int) -> str:
    text = f"{claims.juid}/{claims.pod}/{pod_index}/{seq}/{place}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]
