"""The Merkle tree of a day, from the file of that day: where checkpoints left it, and what proofs need of its records.

Reads only, and trusts saved peaks no further than this: what comes of them must still give a root that was signed.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

from kuangchao_contracts import notes
from kuangchao_contracts.audit import AuditRecord, Decision, Stage, new_opid
from kuangchao_contracts.auditproof import ShardEnd
from kuangchao_contracts.errors import StorageError
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.merkle import HASH_BYTES, Frontier, consistency_proof, leaf_hash, range_hash
from kuangchao_contracts.notes import BadNoteError
from kuangchao_contracts.resources import CLUSTER
from kuangchao_operator.audit import schema


@dataclass(frozen=True, slots=True)
class Head:
    """The tree of a day at one moment."""

    day: date
    size: int
    peaks: tuple[bytes, ...]

    @classmethod
    def of(cls, day: date, frontier: Frontier) -> "Head":
        """What a frontier holds now."""
        return cls(day, frontier.end, frontier.peaks)

    @property
    def root(self) -> str:
        """Root of the tree, in hex."""
        return Frontier.of_peaks(self.size, self.peaks).root().hex()

    def end(self) -> ShardEnd:
        """The same as the last word of the day."""
        return ShardEnd(day=self.day, size=self.size, root=self.root)


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint as the day's file keeps it."""

    size: int
    root: str
    note: str


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """The file of a day, opened for reading. Raises StorageError."""
    try:
        with closing(schema.open_reader(path)) as reader:
            yield reader
    except sqlite3.Error as error:
        raise StorageError(f"{path.name} cannot be read: {error}") from error


def kept(reader: sqlite3.Connection) -> Iterator[Kept]:
    """All checkpoints of a day, smallest first."""
    for size, root, note in reader.execute("SELECT size, root, note FROM checkpoints ORDER BY size"):
        yield Kept(size, root, note)


def newest(reader: sqlite3.Connection) -> Kept | None:
    """The checkpoint over the most records."""
    found = reader.execute("SELECT size, root, note FROM checkpoints ORDER BY size DESC LIMIT 1").fetchone()
    return None if found is None else Kept(*found)


def keep(writer: sqlite3.Connection, head: Head, note: str) -> None:
    """Store a checkpoint; one over as many records is replaced."""
    row = (head.size, head.root, note, b"".join(head.peaks))
    writer.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?)", row)


def frontier(reader: sqlite3.Connection, size: int | None = None) -> Frontier:
    """The tree of the first `size` records, of all when None. Raises StorageError when there are not so many."""
    tree = _saved(reader, size)
    for leaf in _leaves(reader, tree.end, size):
        tree.append(leaf)
    if size is not None and tree.end != size:
        raise StorageError(f"the day holds {tree.end} records, where {size} are asked for")
    return tree


def consistency(reader: sqlite3.Connection, old: int, head: Head) -> tuple[bytes, ...]:
    """Proof that the tree of the first `old` records is the beginning of `head`.

    Raises StorageError when the records that are stored do not give `head`: then they are not those that were written.
    """
    before = frontier(reader, old)
    known = before.subtrees()
    added = Frontier(old)
    for leaf in _leaves(reader, old, head.size):
        added.append(leaf)
        before.append(leaf)
    if Head.of(head.day, before) != head:
        raise StorageError(f"stored records of {head.day} are not those that were written")
    return consistency_proof(old, head.size, range_hash(known | added.subtrees()))


def shard_record(moment: datetime, ended: ShardEnd) -> AuditRecord:
    """The first record of a day."""
    return AuditRecord(
        ts=moment,
        opid=new_opid(),
        stage=Stage.SYSTEM,
        layer=Layer.GOVERNANCE.value,
        op=schema.SHARD_OP,
        resource=f"{CLUSTER}/audit/{ended.day.isoformat()}",
        subject=Layer.GOVERNANCE.subject,
        decision=Decision.ALLOW,
        detail=ended.canonical().decode(),
    )


def _saved(reader: sqlite3.Connection, size: int | None) -> Frontier:
    """The largest tree that a checkpoint left and whose peaks still give the root of its note."""
    query = "SELECT size, peaks, note FROM checkpoints WHERE size <= ? ORDER BY size DESC"
    for count, joined, note in reader.execute(query, (2**62 if size is None else size,)):
        peaks = [joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)]
        try:
            tree = Frontier.of_peaks(count, peaks)
            said = notes.parse(note)
        except (ValueError, BadNoteError):
            continue
        if (said.size, said.root) == (count, tree.root().hex()):
            return tree
    return Frontier()


def _leaves(reader: sqlite3.Connection, start: int, end: int | None) -> Iterator[bytes]:
    """Leaf hashes of the records [start, end) of a day, whose sequence numbers have no gaps."""
    (first,) = reader.execute("SELECT min(seq) FROM records").fetchone()
    if first is None:
        return
    last = 2**62 if end is None else first + end
    query = "SELECT body FROM records WHERE seq >= ? AND seq < ? ORDER BY seq"
    for (body,) in reader.execute(query, (first + start, last)):
        yield leaf_hash(body)
