"""What waits to be stored: lanes that are bounded in records and in bytes. Not thread-safe; knows no disk."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from kuangchao_contracts.audit import AuditRecord
from kuangchao_operator.audit.store import Entry

RECORD_BYTES: Final = 500
"""A record's own part: names of fields, numbers, hashes."""


@dataclass(slots=True)
class Item:
    """A record on its way. `done` None: nobody waits for it. `keep`: it tells of what has happened, so try again."""

    entry: Entry
    keep: bool
    done: asyncio.Future[None] | None = None

    @property
    def abandoned(self) -> bool:
        """Whether whoever waited has given up, and so will not act."""
        return not self.keep and self.done is not None and self.done.done()


class Lane:
    """First in, first out; `has_room` before `put`."""

    def __init__(self, records: int, size: int) -> None:
        self._records, self._bytes = records, size
        self._items: deque[tuple[Item, int]] = deque()
        self._held = 0

    def __len__(self) -> int:
        return len(self._items)

    def has_room(self) -> bool:
        """Whether one more record may wait. The last one may go beyond the bytes, by its own size."""
        return len(self._items) < self._records and self._held < self._bytes

    def put(self, item: Item) -> None:
        """Let it wait."""
        size = size_of(item.entry.record)
        self._items.append((item, size))
        self._held += size

    def take(self) -> Item:
        """The oldest."""
        item, size = self._items.popleft()
        self._held -= size
        return item


def size_of(record: AuditRecord) -> int:
    """About how many bytes it takes when stored; exact would mean to encode it twice."""
    return RECORD_BYTES + len(record.resource) + len(record.subject) + len(record.job) + len(record.detail)
