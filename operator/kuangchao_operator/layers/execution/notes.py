"""What the gates inside a pod's ranks have noted, as records for the audit store. Pure.

The word of a worker: it can lie about itself, so a record says who reported it, and nothing is decided from it. It can
lie about nobody else: names and resources of other jobs never get into a record's indexed fields. Nor do words of its
own making: equal denials are counted together by these fields, and a flood of ever new ones would fill the store.
"""

import hashlib
from datetime import datetime
from typing import Final

from kuangchao_contracts.audit import AuditRecord, Decision, Stage
from kuangchao_contracts.claims import WORKER_ROLES, Claims
from kuangchao_contracts.errors import FutureEpochError, refusals
from kuangchao_contracts.names import job_resource
from kuangchao_contracts.oplog import LEASE_OVERDUE
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.run import RankNote, RankNotes
from kuangchao_contracts.text import recordable

UNVERIFIED: Final = "unverified"
UNKNOWN: Final = "unknown"
UNKNOWN_REASON: Final = "Unknown"
REASONS: Final = frozenset({*refusals(), LEASE_OVERDUE})
"""All that a rank's gate has to say."""


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
    said = [f"reported by {claims.sub}, first at {note.first.isoformat()}"]
    said += [f"operation {note.op}"] if known is None else []
    said += [f"reason {note.reason}"] if note.reason not in REASONS else []
    said += [f"on {note.resource}"] if note.resource != own else []
    return AuditRecord(
        ts=now,
        opid=opid,
        stage=Stage.SYSTEM if note.allowed else Stage.DENY,
        layer=known.layer.value if known else UNKNOWN,
        op=note.op if known else UNKNOWN,
        resource=own,
        subject=_subject(claims, note.subject),
        jti=note.jti,
        job=claims.job,
        job_uid=claims.juid,
        attempt=note.attempt,
        decision=Decision.ALLOW if note.allowed else Decision.DENY,
        reason=note.reason if note.reason in REASONS else UNKNOWN_REASON,
        detail=recordable(", ".join(said), 1024),
        count=note.count,
        process=f"rank/{note.rank}",
    )


def _subject(claims: Claims, said: str) -> str:
    """The subject, if it is of the reporter's own pod; whoever else was named is not accused on its word."""
    return said if said in {f"{role}:{claims.ns}/{claims.job}/{claims.pod}" for role in WORKER_ROLES} else UNVERIFIED


def _opid(claims: Claims, pod_index: int, seq: int, place: int) -> str:
    text = f"{claims.juid}/{claims.pod}/{pod_index}/{seq}/{place}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]
