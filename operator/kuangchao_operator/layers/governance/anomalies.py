"""Unusual use of rights, found in the audit trail: rules over one window of time and what earlier ones left.

Pure: records in, findings out. Reports, never acts: whether a finding is an attack is for people to say, so each one
names subject, counts, norm, operations to look at, and what to do.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from kuangchao_contracts.audit import AuditRecord, Decision
from kuangchao_contracts.errors import ReplayedTokenError, UnknownKeyError
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.policy import READ_ONLY, role
from kuangchao_operator.layers.governance.windows import (
    KUBERNETES_WRITES,
    Memory,
    Use,
    Window,
    denials,
    norm,
    uses,
    writers,
)

TIMES: Final = 3.0
SPREADS: Final = 6.0
"""Far above the norm: more than so many times the median and so many spreads beyond it, both."""
HISTORY: Final = 6
"""Windows (or peers) that a norm needs; with fewer nothing is called unusual."""
LEAST_USES: Final = 50
LEAST_QUERIES: Final = 100
LEAST_DENIALS: Final = 20
LEAST_REFUSED_WRITES: Final = 3
LEAST_UNKNOWN_KEYS: Final = 3
CLOSING: Final = timedelta(seconds=120)
"""Pods of a job that has just ended may still speak: twice the time that they are given to end (60 s by default)."""
SAMPLES: Final = 5
QUERY: Final = "governance.query"


class Rule(StrEnum):
    """What is looked for."""

    READ_ONLY_WRITES = "read-only-writes"
    TOKEN_USE = "token-use"
    DENIALS_RISING = "denials-rising"
    CLOSED_JOB = "closed-job"
    REPLAY = "replay"
    TRAIL_QUERIES = "trail-queries"
    UNKNOWN_KEYS = "unknown-keys"


ADVICE: Final[dict[Rule, str]] = {
    Rule.READ_ONLY_WRITES: "this account only reads: ask its holder, and change its credentials if nobody knows why",
    Rule.TOKEN_USE: "look at the operations and at the pod's log; revoke the token if the pod cannot explain them",
    Rule.DENIALS_RISING: "read them with `audit query --result deny --subject`: a mistake after a change, or a probe",
    Rule.CLOSED_JOB: "the job is over and its pods should be gone: find the pod, or where its token went",
    Rule.REPLAY: "a one-shot was presented twice, so a copy of it exists: find both callers by the operations",
    Rule.TRAIL_QUERIES: "see who holds the Role kuangchao-auditor, and who forwarded a port to the governance pod",
    Rule.UNKNOWN_KEYS: "no key of this cluster signed these tokens: forged, or another cluster's; find the caller",
}
MEDIUM: Final = frozenset({Rule.TOKEN_USE, Rule.DENIALS_RISING, Rule.TRAIL_QUERIES})
"""Far from the norm, which may have a harmless cause; the others have none in normal operation."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One unusual thing. `norm` is what would be usual, None where a single occurrence is too much."""

    rule: Rule
    severity: str
    subject: str
    start: datetime
    end: datetime
    count: int
    norm: float | None
    opids: tuple[str, ...]
    detail: str
    advice: str

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "start": self.start.isoformat(), "end": self.end.isoformat()}


def judge(window: Window, memory: Memory) -> list[Finding]:
    """Findings of one window, in a fixed order."""
    return [finding for rule in RULES for finding in rule(window, memory)]


def _read_only_writes(window: Window, memory: Memory) -> Iterator[Finding]:
    """Governance calling anything that changes something; people who never wrote being refused again and again."""
    known = memory.writers | writers(window)
    refused = _by_subject(window, lambda r: r.decision is Decision.DENY and _is_write(r) and r.subject not in known)
    for subject, records in refused.items():
        if _count(records) >= (1 if subject == Layer.GOVERNANCE.subject else LEAST_REFUSED_WRITES):
            yield _finding(Rule.READ_ONLY_WRITES, window, subject, records, detail=_operations(records))


def _is_write(record: AuditRecord) -> bool:
    if record.subject == Layer.GOVERNANCE.subject:
        return record.op not in READ_ONLY
    return record.subject.startswith("user:") and record.op in KUBERNETES_WRITES


def _token_use(window: Window, memory: Memory) -> Iterator[Finding]:
    """A subject that calls an operation far more often than it did, or than its like does where it is new."""
    now = uses(window)
    for (subject, op), count in sorted(now.items()):
        if op == QUERY or count < LEAST_USES:
            continue
        usual = _usual((subject, op), count, now, memory)
        if usual is not None:
            records = [r for r in window.records if (r.subject, r.op) == (subject, op)]
            yield _finding(Rule.TOKEN_USE, window, subject, records, usual, op, count)


def _usual(use: Use, count: int, now: Counter[Use], memory: Memory) -> float | None:
    """The norm that a count is far above of; None when it is not, or when there is too little to tell by."""
    own = [earlier[use] for earlier in memory.uses if use in earlier]
    if len(own) < HISTORY:
        own = [
            many
            for counts in (*memory.uses, now)
            for other, many in counts.items()
            if other != use and other[1] == use[1] and role(other[0]) == role(use[0])
        ]
    return _far_above(count, own)


def _far_above(count: int, history: Sequence[int]) -> float | None:
    if len(history) < HISTORY:
        return None
    centre, spread = norm(history)
    return centre if count > max(TIMES * centre, centre + SPREADS * spread) else None


def _denials_rising(window: Window, memory: Memory) -> Iterator[Finding]:
    """More refusals of one subject than it ever had; a window without any counts as none."""
    for subject, count in sorted(denials(window).items()):
        usual = _far_above(count, [earlier[subject] for earlier in memory.denials])
        if count >= LEAST_DENIALS and usual is not None:
            records = [r for r in window.records if r.subject == subject and r.decision is Decision.DENY]
            yield _finding(Rule.DENIALS_RISING, window, subject, records, usual, _reasons(records))


def _closed_job(window: Window, memory: Memory) -> Iterator[Finding]:
    """A token presented after its job was over: it is refused, and nobody should have it any more."""
    closed = memory.after(window).closed

    def late(record: AuditRecord) -> bool:
        end = closed.get(record.job_uid)
        return record.decision is Decision.DENY and end is not None and record.ts > end + CLOSING

    for subject, records in _by_subject(window, late).items():
        yield _finding(Rule.CLOSED_JOB, window, subject, records, detail=f"job {records[0].job}")


def _replay(window: Window, memory: Memory) -> Iterator[Finding]:  # noqa: ARG001  # one signature for all rules
    yield from _reason(Rule.REPLAY, window, ReplayedTokenError.code, 1)


def _unknown_keys(window: Window, memory: Memory) -> Iterator[Finding]:  # noqa: ARG001  # one signature for all rules
    yield from _reason(Rule.UNKNOWN_KEYS, window, UnknownKeyError.code, LEAST_UNKNOWN_KEYS)


def _trail_queries(window: Window, memory: Memory) -> Iterator[Finding]:
    """Somebody reads the trail far more than is usual."""
    for (subject, op), count in sorted(uses(window).items()):
        own = [earlier[subject, op] for earlier in memory.uses if (subject, op) in earlier]
        usual = _far_above(count, own) if op == QUERY and count >= LEAST_QUERIES else None
        if usual is not None:
            records = [r for r in window.records if (r.subject, r.op) == (subject, op)]
            yield _finding(Rule.TRAIL_QUERIES, window, subject, records, usual, count=count)


RULES: Final[tuple[Callable[[Window, Memory], Iterator[Finding]], ...]] = (
    _read_only_writes,
    _token_use,
    _denials_rising,
    _closed_job,
    _replay,
    _trail_queries,
    _unknown_keys,
)


def _reason(rule: Rule, window: Window, reason: str, least: int) -> Iterator[Finding]:
    for subject, records in _by_subject(window, lambda r: r.decision is Decision.DENY and r.reason == reason).items():
        if _count(records) >= least:
            yield _finding(rule, window, subject, records, detail=_operations(records))


def _by_subject(window: Window, wanted: Callable[[AuditRecord], bool]) -> dict[str, list[AuditRecord]]:
    found: dict[str, list[AuditRecord]] = {}
    for record in window.records:
        if wanted(record):
            found.setdefault(record.subject, []).append(record)
    return dict(sorted(found.items()))


def _finding(
    rule: Rule,
    window: Window,
    subject: str,
    records: Sequence[AuditRecord],
    usual: float | None = None,
    detail: str = "",
    count: int | None = None,
) -> Finding:
    severity = "medium" if rule in MEDIUM else "high"
    opids = tuple(dict.fromkeys(record.opid for record in records))[:SAMPLES]
    total = _count(records) if count is None else count
    return Finding(rule, severity, subject, window.start, window.end, total, usual, opids, detail, ADVICE[rule])


def _count(records: Iterable[AuditRecord]) -> int:
    return sum(record.count for record in records)


def _operations(records: Iterable[AuditRecord]) -> str:
    return ", ".join(sorted({record.op for record in records}))


def _reasons(records: Iterable[AuditRecord]) -> str:
    counts: Counter[str] = Counter()
    for record in records:
        counts[record.reason] += record.count
    return ", ".join(f"{reason} {count}" for reason, count in counts.most_common(3))
