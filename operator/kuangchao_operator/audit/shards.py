"""The days of a store whatever form they have: one way to read their rows and checkpoints, for whoever checks them."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Final

from kuangchao_contracts.errors import StorageError
from kuangchao_operator.audit import cold, retention, schema, tree
from kuangchao_operator.audit.cold import Cold, Row, ShardSummary
from kuangchao_operator.audit.tree import Kept
from kuangchao_operator.audit.walk import body_of

COLUMNS: Final = ", ".join(cold.COLUMNS)
DID: Final = "op = ? AND resource = ? AND stage IN ('intent', 'result')"


class Shard(ABC):
    """One day. `gone`: only its summary is left."""

    gone = False

    def __init__(self, day: date, name: str) -> None:
        self.day, self.name = day, name

    @abstractmethod
    def rows(self, skip: int = 0) -> Iterator[Row]:
        """Rows in the order of their numbers, without the first `skip`. Raises StorageError."""

    def bodies(self, skip: int = 0) -> Iterator[bytes]:
        """The stored bytes alone, as `rows` gives them. Raises StorageError."""
        return map(body_of, self.rows(skip))

    @abstractmethod
    def checkpoints(self) -> list[Kept]:
        """Checkpoints that are kept of the day, smallest first. Raises StorageError."""

    @abstractmethod
    def span(self) -> tuple[int, int]:
        """Numbers of the first and the last record; (0, 0) when there is none. Raises StorageError."""

    @abstractmethod
    def did(self, op: str, resource: str) -> bool:
        """Whether this operation was begun on this resource. Raises StorageError.

        A denial does not count: whoever is refused chooses the words of what he asked for.
        """

    def flaws(self) -> list[str]:
        """What is wrong with the form: a query would not find all that `rows` gives. Raises StorageError."""
        return []

    @property
    def summary(self) -> ShardSummary | None:
        """What the day was found to hold when it was put away. Raises StorageError."""
        return None


class Hot(Shard):
    """A SQLite file."""

    def __init__(self, path: Path) -> None:
        super().__init__(schema.day_of(path), path.name)
        self.path = path

    def rows(self, skip: int = 0) -> Iterator[Row]:
        """See `Shard`."""
        query = f"SELECT {COLUMNS} FROM records ORDER BY seq LIMIT -1 OFFSET ?"  # noqa: S608  # our own names
        with tree.reading(self.path) as reader:
            yield from reader.execute(query, (skip,))

    def bodies(self, skip: int = 0) -> Iterator[bytes]:
        """See `Shard`."""
        with tree.reading(self.path) as reader:
            for row in reader.execute("SELECT body FROM records ORDER BY seq LIMIT -1 OFFSET ?", (skip,)):
                yield body_of(row)

    def checkpoints(self) -> list[Kept]:
        """See `Shard`."""
        with tree.reading(self.path) as reader:
            return list(tree.kept(reader))

    def span(self) -> tuple[int, int]:
        """See `Shard`."""
        with tree.reading(self.path) as reader:
            first, last = reader.execute("SELECT min(seq), max(seq) FROM records").fetchone()
        return first or 0, last or 0

    def did(self, op: str, resource: str) -> bool:
        """See `Shard`."""
        with tree.reading(self.path) as reader:
            return reader.execute(f"SELECT 1 FROM records WHERE {DID} LIMIT 1", (op, resource)).fetchone() is not None  # noqa: S608  # our own text

    def flaws(self) -> list[str]:
        """See `Shard`."""
        with tree.reading(self.path) as reader:
            return schema.flaws(reader)


class Put(Shard):
    """A folder of Parquet files."""

    def __init__(self, directory: Path, day: date) -> None:
        self._folder = cold.shard_of(directory, day)
        super().__init__(day, self._folder.name)
        self._directory = directory

    def rows(self, skip: int = 0) -> Iterator[Row]:
        """See `Shard`."""
        with Cold(self._directory) as reader:
            yield from itertools.islice(reader.rows(self._folder), skip, None)

    def checkpoints(self) -> list[Kept]:
        """See `Shard`."""
        return last_checkpoint(self.summary)

    def span(self) -> tuple[int, int]:
        """See `Shard`."""
        return self.summary.first, self.summary.last

    def did(self, op: str, resource: str) -> bool:
        """See `Shard`."""
        with Cold(self._directory) as reader:
            return bool(reader.select([self._folder], DID, (op, resource), 1))

    def flaws(self) -> list[str]:
        """See `Shard`."""
        with Cold(self._directory) as reader:
            return reader.flaws(self._folder)

    @property
    def summary(self) -> ShardSummary:
        """See `Shard`."""
        return cold.summary(self._folder)


class Gone(Shard):
    """A tombstone."""

    gone = True

    def __init__(self, content: ShardSummary) -> None:
        super().__init__(content.day, f"{retention.FOLDER}/{content.day.isoformat()}{retention.SUFFIX}")
        self._content = content

    def rows(self, skip: int = 0) -> Iterator[Row]:  # noqa: ARG002  # the interface's signature
        """See `Shard`."""
        raise StorageError(f"records of {self.day} were removed when their time was over")

    def checkpoints(self) -> list[Kept]:
        """See `Shard`."""
        return last_checkpoint(self._content)

    def span(self) -> tuple[int, int]:
        """See `Shard`."""
        return self._content.first, self._content.last

    def did(self, op: str, resource: str) -> bool:  # noqa: ARG002  # the interface's signature
        """See `Shard`."""
        return False

    @property
    def summary(self) -> ShardSummary:
        """See `Shard`."""
        return self._content


def shards(directory: Path) -> list[Shard]:
    """All days of a store, oldest first. A day that is found twice, as while it is moved or removed, counts as it was.

    Raises StorageError.
    """
    found: dict[date, Shard] = {stone.day: Gone(stone) for stone in retention.tombstones(directory)}
    found |= {day: Put(directory, day) for day in cold.days(directory)}
    found |= {schema.day_of(path): Hot(path) for path in schema.files(directory)}
    return [found[day] for day in sorted(found)]


def last_checkpoint(summary: ShardSummary) -> list[Kept]:
    """The one checkpoint that is kept of a day that was put away."""
    return [Kept(summary.size, summary.root, summary.checkpoint)] if summary.checkpoint else []
