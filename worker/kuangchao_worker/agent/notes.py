"""Notes of the ranks' gates on their way to the store: each is told once, however often a heartbeat is repeated.

Lives as long as the agent, so what was noted in one attempt is still told in the next. Judges nothing.
"""

from typing import Final

from kuangchao_contracts.run import RankNote, RankNotes

MAX_KINDS: Final = 1_024
"""Notes of different kinds that wait; beyond that, equal reasons are one note, and no call goes uncounted."""
PER_BATCH: Final = 64
_Key = tuple[int, int, str, str, str, str, bool, str]


class NoteQueue:
    """Adds up equal notes while they wait. A batch that was sent is not changed until it is stored."""

    def __init__(self) -> None:
        self._waiting: dict[_Key, RankNote] = {}
        self._sent: RankNotes | None = None
        self._seq = 0

    @property
    def empty(self) -> bool:
        """Whether everything is stored."""
        return self._sent is None and not self._waiting

    def add(self, note: RankNote) -> None:
        """Take a note in."""
        if _key(note) not in self._waiting and len(self._waiting) >= MAX_KINDS:
            note = note.replace(op="many", resource="many", subject="many", jti="")
        known = self._waiting.get(_key(note))
        self._waiting[_key(note)] = note if known is None else known.replace(count=known.count + note.count)

    def batch(self) -> RankNotes | None:
        """What to send now: the batch before until it is stored, then the next one."""
        if self._sent is None and self._waiting:
            keys = list(self._waiting)[:PER_BATCH]
            self._seq += 1
            self._sent = RankNotes(seq=self._seq, notes=tuple(self._waiting.pop(key) for key in keys))
        return self._sent

    def stored(self, seq: int | None) -> None:
        """The control plane has stored this batch."""
        if self._sent is not None and seq is not None and seq >= self._sent.seq:
            self._sent = None


def _key(note: RankNote) -> _Key:
    return (note.rank, note.attempt, note.op, note.resource, note.subject, note.reason, note.allowed, note.jti)
