"""The trail cut into windows of time, and what a window leaves for judging later ones. Values only; judges nothing.

Holds counts and names of subjects, never records: what is kept of the past has a bound, however long the trail is.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from kuangchao_contracts.audit import AuditRecord, Decision, Stage
from kuangchao_contracts.claims import SYSTEM

V = TypeVar("V")
LENGTH: Final = timedelta(minutes=5)
KEPT: Final = 24
"""Windows that a norm is taken from."""
MAX_NAMES: Final = 20_000
KUBERNETES_WRITES: Final = frozenset(
    f"kubernetes.{verb}" for verb in ("create", "update", "patch", "delete", "deletecollection")
)
Use = tuple[str, str]
"""Subject and operation (or reason of a denial)."""


@dataclass(frozen=True, slots=True)
class Window:
    """Records of one span of time, in an order that does not depend on how they came."""

    start: datetime
    records: tuple[AuditRecord, ...]

    @property
    def end(self) -> datetime:
        """Where the next one begins."""
        return self.start + LENGTH


@dataclass(frozen=True, slots=True)
class Memory:
    """What earlier windows left."""

    uses: tuple[Counter[Use], ...] = ()
    """Per window: calls that were let through, by subject and operation."""
    denials: tuple[Counter[str], ...] = ()
    """Per window: denials by subject."""
    writers: frozenset[str] = frozenset()
    """People who changed something through the API server."""
    uids: dict[str, str] = field(default_factory=dict)
    """Resource of a job -> uid of the last one that was seen alive under that name."""
    closed: dict[str, datetime] = field(default_factory=dict)
    """Uid of a job -> when all it held was freed."""

    def after(self, window: Window) -> "Memory":
        """With one more window."""
        uids, closed = dict(self.uids), dict(self.closed)
        for record in window.records:
            _follow(record, uids, closed)
        return Memory(
            uses=(*self.uses, uses(window))[-KEPT:],
            denials=(*self.denials, denials(window))[-KEPT:],
            writers=frozenset(sorted(self.writers | writers(window))[:MAX_NAMES]),
            uids=_newest(uids),
            closed=_newest(closed),
        )


def _follow(record: AuditRecord, uids: dict[str, str], closed: dict[str, datetime]) -> None:
    """Which job stands behind a name, and when it was over. Layers act on a closed job under no uid."""
    if record.decision is not Decision.ALLOW or record.stage is Stage.INTENT:
        return
    if record.op == "execution.reclaim":
        uid = record.job_uid if record.job_uid not in ("", SYSTEM) else uids.get(record.resource, "")
        if uid:
            closed.setdefault(uid, record.ts)
    elif record.job_uid not in ("", SYSTEM):
        uids[record.resource] = record.job_uid
        closed.pop(record.job_uid, None)  # resumed


def _newest(names: dict[str, V]) -> dict[str, V]:
    return dict(list(names.items())[-MAX_NAMES:])


def window(start: datetime, records: Iterable[AuditRecord]) -> Window:
    """A window of these records."""
    return Window(start, tuple(sorted(records, key=lambda r: (r.ts, r.opid, r.stage.value, r.canonical()))))


def start_of(moment: datetime) -> datetime:
    """Start of the window that a moment is in; the same for every reader of the trail."""
    seconds = int(moment.timestamp())
    return datetime.fromtimestamp(seconds - seconds % int(LENGTH.total_seconds()), UTC)


def uses(window: Window) -> Counter[Use]:
    """Calls that were let through. An operation is one call, that of its result."""
    found: Counter[Use] = Counter()
    for record in window.records:
        if record.decision is not Decision.DENY and record.stage in {Stage.RESULT, Stage.READ}:
            found[record.subject, record.op] += record.count
    return found


def denials(window: Window) -> Counter[str]:
    """Denials by subject."""
    found: Counter[str] = Counter()
    for record in window.records:
        if record.decision is Decision.DENY:
            found[record.subject] += record.count
    return found


def writers(window: Window) -> set[str]:
    """Subjects that changed something through the API server."""
    return {r.subject for r in window.records if r.op in KUBERNETES_WRITES and r.decision is Decision.ALLOW}


def norm(counts: Sequence[int]) -> tuple[float, float]:
    """Median, and a spread that single outliers do not move: no less than chance alone makes of such a count."""
    centre = statistics.median(counts)
    deviation = statistics.median(abs(count - centre) for count in counts)
    return centre, max(1.4826 * deviation, centre**0.5, 1.0)
