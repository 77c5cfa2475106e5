"""Checks that a store is whole: every record follows from the one before. Says where it does not. Reads only.

The chain finds any change, removal, insertion or reordering between two records that are still there. It cannot find
that the end was cut off: compare `head` with one that was written down elsewhere.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from kuangchao_contracts.audit import StoredRecord
from kuangchao_contracts.base import Contract
from kuangchao_operator.audit import schema

MAX_PROBLEMS: Final = 100
Row = tuple[int, bytes, tuple[int | str | bytes, ...]]


class VerifyReport(Contract):
    """Result for a whole store."""

    ok: bool
    files: int
    records: int
    first: int = 0
    last: int = 0
    head: str = schema.GENESIS
    problems: Annotated[tuple[str, ...], Field(max_length=MAX_PROBLEMS)] = ()


def verify(directory: Path, known_head: tuple[int, str] | None = None) -> VerifyReport:
    """Check all files in order. `known_head` is a (sequence number, hash) that was noted earlier."""
    chain = _Chain(known_head)
    paths = schema.files(directory)
    for path in paths:
        try:
            for row in _rows(path):
                chain.take(path.name, row)
        except sqlite3.Error as error:
            chain.problem(f"{path.name}: cannot be read: {error}")
    chain.end()
    return VerifyReport(
        ok=not chain.problems,
        files=len(paths),
        records=chain.records,
        first=chain.first,
        last=chain.seq,
        head=chain.head,
        problems=tuple(chain.problems[:MAX_PROBLEMS]),
    )


class _Chain:
    """Follows the chain and keeps what is wrong with it."""

    def __init__(self, known_head: tuple[int, str] | None) -> None:
        self._known = known_head
        self._known_seen = known_head is None or known_head[0] == 0
        self.problems: list[str] = []
        self.records, self.first, self.seq, self.head = 0, 0, 0, schema.GENESIS

    def problem(self, text: str) -> None:
        """Note a fault."""
        self.problems.append(text)

    def take(self, name: str, row: Row) -> None:
        """Check one row against the one before."""
        seq, body, columns = row
        where = f"{name}: record {seq}"
        expected = self.seq + 1
        if seq != expected:
            self.problem(f"{where}: expected record {expected}, {'missing' if seq > expected else 'out of order'}")
        self._check_body(where, seq, body, columns)
        self.records += 1
        self.first = self.first or seq
        self.seq, self.head = seq, schema.digest(body)
        if self._known is not None and seq == self._known[0]:
            self._known_seen = True
            if self.head != self._known[1]:
                self.problem(f"{where}: differs from the head that was noted")

    def end(self) -> None:
        """Check what only the end can show."""
        if self._known is not None and not self._known_seen:
            self.problem(f"ends at record {self.seq}, before the noted head {self._known[0]}")

    def _check_body(self, where: str, seq: int, body: bytes, columns: tuple[int | str | bytes, ...]) -> None:
        try:
            stored = StoredRecord.model_validate_json(body)
        except ValidationError:
            self.problem(f"{where}: cannot be parsed")
            return
        if stored.seq != seq:
            self.problem(f"{where}: says that it is record {stored.seq}")
        if stored.previous != self.head:
            self.problem(f"{where}: does not follow from the record before it")
        if schema.row(seq, stored.record, body) != columns:
            self.problem(f"{where}: indexed columns differ from the record")


def _rows(path: Path) -> Iterator[Row]:
    reader = schema.open_reader(path)
    try:
        for columns in reader.execute("SELECT * FROM records ORDER BY seq"):
            body = columns[-1]
            yield int(columns[0]), body if isinstance(body, bytes) else str(body).encode(), tuple(columns)
    finally:
        reader.close()
