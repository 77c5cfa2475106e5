"""Checks that a store is whole, and says where it is not. Reads only, and trusts nothing that it reads.

The chain of `previous` finds any change between two records that are still there, the checkpoints of a day find one at
its end, and a checkpoint that was noted elsewhere (an anchor) finds that the store was rolled back together with its
own checkpoints. The bytes are checked as they are stored; no record is ever written anew to compare it.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from pydantic_core import from_json

from kuangchao_contracts import notes
from kuangchao_contracts.auditproof import MAX_PROBLEMS, Position, ShardEnd, VerifyReport, VerifyRequest
from kuangchao_contracts.errors import StorageError
from kuangchao_contracts.merkle import Frontier
from kuangchao_contracts.notes import AuditKeys, BadNoteError, Checkpoint
from kuangchao_contracts.resources import CLUSTER
from kuangchao_operator.audit import schema
from kuangchao_operator.audit.cold import Row, ShardSummary
from kuangchao_operator.audit.shards import Shard, shards
from kuangchao_operator.audit.tree import Kept
from kuangchao_operator.audit.walk import body_of, walk

EVERYTHING: Final = 2**62
RETIRE_OP: Final = "audit.retire"


def verify(directory: Path, keys: AuditKeys | None = None, anchors: Sequence[str] = ()) -> VerifyReport:
    """Check the whole store. With `keys` every day must have a checkpoint that one of them has signed."""
    return Verification(directory, VerifyRequest(keys=keys, anchors=tuple(anchors))).run(EVERYTHING)


def verify_some(directory: Path, request: VerifyRequest) -> VerifyReport:
    """Check a part of the store; the report says where to go on."""
    return Verification(directory, request).run(request.limit)


class Verification:
    """Follows the records from a position on and keeps what is wrong with them."""

    def __init__(self, directory: Path, request: VerifyRequest) -> None:
        at = request.position
        self._problems: list[str] = []
        self._shards, self._keys = self._find(directory), request.keys
        self._day, self._seq, self._head, self._ended, self._uncovered = at.day, at.seq, at.head, at.ended, at.uncovered
        self._doubted = at.doubted
        self._tree = Frontier.of_peaks(at.size, [bytes.fromhex(peak) for peak in at.peaks])
        self._files = self._records = self._checkpoints = self._first = self._unsigned = 0
        self._anchors = self._read_anchors(request.anchors)
        # a store that has checkpoints has one for every day
        self._demanded = bool(self._keys or request.anchors) or any(map(_has_checkpoints, self._shards))

    def run(self, limit: int) -> VerifyReport:
        """Read so many records at most, then report."""
        position = None
        for shard in self._shards:
            if self._day is not None and shard.day < self._day:
                continue
            if not self._shard(shard, limit):
                position = self._position()
                break
        else:
            self._end()
        return VerifyReport(
            ok=not self._problems,
            files=self._files,
            records=self._records,
            checkpoints=self._checkpoints,
            first=self._first,
            last=self._seq,
            head=self._head,
            unsigned=self._unsigned,
            problems=tuple(self._problems[:MAX_PROBLEMS]),
            position=position,
        )

    def _find(self, directory: Path) -> list[Shard]:
        try:
            return shards(directory)
        except StorageError as error:
            self._problems.append(str(error))
            return []

    def _shard(self, shard: Shard, limit: int) -> bool:
        """Check a day as far as the limit goes; whether to its end."""
        begins = shard.day != self._day
        if begins:
            self._day, self._tree, self._doubted = shard.day, Frontier(), False
            self._files += 1
        try:
            kept = self._kept(shard) if begins else shard.checkpoints()
            summary = shard.summary
            if shard.gone and summary is not None:
                self._gone(shard, summary, kept)
                return True
            if begins:
                self._flaws(shard)
            if not self._rows(shard, kept, limit, begins):
                return False
        except StorageError as error:
            self._problem(shard, str(error))
            return True
        self._ends(shard, kept, self._tree.end, self._tree.root().hex())
        if summary is not None and (summary.size, summary.last, summary.head) != (
            self._tree.end,
            self._seq,
            self._head,
        ):
            self._problem(shard, "holds other records than were put away")
        return True

    def _flaws(self, shard: Shard) -> None:
        for flaw in shard.flaws():
            self._problem(shard, flaw)

    def _rows(self, shard: Shard, kept: list[Kept], limit: int, begins: bool) -> bool:
        rows = shard.rows(skip=self._tree.end)
        if begins and (first := next(rows, None)) is not None:
            self._check_beginning(shard, first)
            rows = itertools.chain((first,), rows)
        for size, root, what in self._known_roots(shard, kept):
            if not self._walk(shard, rows, size - self._tree.end, limit):
                return self._records < limit
            if self._tree.root().hex() != root and not self._doubted:
                self._problem(shard, f"record {self._seq}: the first {size} do not give the root of {what}")
                self._doubted = True
        self._walk(shard, rows, EVERYTHING, limit)
        return self._records < limit

    def _walk(self, shard: Shard, rows: Iterator[Row], wanted: int, limit: int) -> bool:
        """Check the next rows; whether there were so many and the limit allowed them."""
        before = self._tree.end
        part = itertools.islice(rows, min(wanted, limit - self._records))
        self._seq, self._head = walk(part, self._seq, self._head, self._tree, lambda text: self._problem(shard, text))
        self._records += self._tree.end - before
        return self._tree.end - before == wanted

    def _known_roots(self, shard: Shard, kept: list[Kept]) -> list[tuple[int, str, str]]:
        """Sizes that still lie ahead at which the root is known, with the root and who says so."""
        known = [(item.size, item.root, f"the checkpoint of {item.size}") for item in kept]
        known += [(anchor.size, anchor.root, "the anchor") for anchor in self._anchors if anchor.day == shard.day]
        return sorted(item for item in known if item[0] >= self._tree.end)

    def _check_beginning(self, shard: Shard, row: Row) -> None:
        """The first record of a day says how the day before ended; only the first record ever has none before it."""
        stated, number = _stated(row), int(row[0])
        self._first = self._first or number
        where = f"record {number}: "
        if self._ended is None:
            if number != 1:
                lacking = (
                    f"{stated.day} is missing and has no tombstone" if stated else "the records before are missing"
                )
                self._problem(shard, where + lacking)
                self._seq, self._head = number - 1, _previous(row)
        elif stated is None:
            self._problem(shard, f"{where}does not say how {self._ended.day} ended")
        elif stated.day > self._ended.day:
            self._problem(shard, f"{where}{stated.day} is missing and has no tombstone")
        elif stated != self._ended:
            self._problem(shard, f"{where}{self._ended.day} ended otherwise than it says")

    def _gone(self, shard: Shard, summary: ShardSummary, kept: list[Kept]) -> None:
        """A day of which a tombstone is left: the oldest go first, and the chain goes on from what it says."""
        if any(not other.gone for other in self._shards if other.day < shard.day):
            self._problem(shard, "is a tombstone though days before it are still there")
        if not self._retired(shard):
            self._problem(shard, "is a tombstone, and no record says that its day was removed")
        if summary.first != self._seq + 1:
            self._problem(shard, f"begins with record {summary.first}: record {self._seq + 1} is missing")
        self._seq, self._head = summary.last, summary.head
        self._ends(shard, kept, summary.size, summary.root)

    def _retired(self, shard: Shard) -> bool:
        """Whether the removal was recorded. Asked of the newest tombstone: what tells of older ones may be gone too."""
        if any(other.gone for other in self._shards if other.day > shard.day):
            return True
        resource = f"{CLUSTER}/audit/{shard.day.isoformat()}"
        return any(other.did(RETIRE_OP, resource) for other in self._shards if other.day > shard.day)

    def _ends(self, shard: Shard, kept: list[Kept], size: int, root: str) -> None:
        covered = kept[-1].size if kept else 0
        if covered > size:
            self._problem(shard, f"ends after {size} records, before its own checkpoint of {covered}")
        if not kept and self._demanded and (size or self._seq):
            self._problem(shard, "has no checkpoint")
        if not size and self._seq:
            self._problem(shard, "has no record")
        if kept and self._uncovered:
            self._problems.append(self._uncovered)
        self._unsigned = max(size - covered, 0)
        # the last records of a day may wait for the issuer, but no later day is signed before they are
        waiting = f"{shard.name}: its last {size - covered} records have no checkpoint"
        self._uncovered = waiting if 0 < covered < size else ""
        for anchor in self._anchors:
            if anchor.day == shard.day and anchor.size > size:
                self._problem(
                    shard, f"ends after {size} records, before the anchor of {anchor.size}: cut or rolled back"
                )
        if size:
            self._ended = ShardEnd(day=shard.day, size=size, root=root)

    def _kept(self, shard: Shard) -> list[Kept]:
        """The checkpoints of a day, after a look at each. One that is not genuine counts for nothing."""
        found = shard.checkpoints()
        good = [item for item in found if self._genuine(shard, item)]
        self._checkpoints += len(found)
        return good

    def _genuine(self, shard: Shard, item: Kept) -> bool:
        try:
            said = self._read(item.note)
        except BadNoteError as error:
            self._problem(shard, f"checkpoint of {item.size}: {error}")
            return False
        if (said.day, said.size, said.root) != (shard.day, item.size, item.root):
            self._problem(
                shard, f"checkpoint of {item.size}: its note says {said.size} of {said.day}, root {said.root}"
            )
            return False
        return True

    def _read(self, note: str) -> Checkpoint:
        return notes.check(note, self._keys) if self._keys else notes.parse(note)

    def _read_anchors(self, anchors: Sequence[str]) -> list[Checkpoint]:
        found = []
        for anchor in anchors:
            try:
                found.append(self._read(anchor))
            except BadNoteError as error:
                self._problems.append(f"anchor: {error}")
        return found

    def _end(self) -> None:
        there = {shard.day for shard in self._shards}
        lacking = sorted({anchor.day for anchor in self._anchors} - there)
        self._problems += [
            f"{schema.file_of(Path(), day)}: is missing, and an anchor is of this day" for day in lacking
        ]

    def _position(self) -> Position:
        return Position(
            day=self._day,
            size=self._tree.end,
            peaks=tuple(peak.hex() for peak in self._tree.peaks),
            seq=self._seq,
            head=self._head,
            ended=self._ended,
            uncovered=self._uncovered,
            doubted=self._doubted,
        )

    def _problem(self, shard: Shard, text: str) -> None:
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.append(f"{shard.name}: {text}")


def _has_checkpoints(shard: Shard) -> bool:
    try:
        return bool(shard.checkpoints())
    except StorageError:  # told when its turn comes
        return False


def _stated(row: Row) -> ShardEnd | None:
    """How the day before ended, by the first record of a day; None when it does not say."""
    try:
        record = from_json(body_of(row))["record"]
        return ShardEnd.model_validate_json(record["detail"]) if record["op"] == schema.SHARD_OP else None
    except (ValidationError, ValueError, KeyError, TypeError):
        return None


def _previous(row: Row) -> str:
    try:
        return str(from_json(body_of(row))["previous"])
    except (ValueError, KeyError, TypeError):
        return schema.GENESIS
