"""T16: whoever edits the files of the audit store is found out, and the report says where."""

import asyncio
import copy
import shutil
import sqlite3
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kuangchao_contracts import notes
from kuangchao_contracts.audit import Decision, Stage
from kuangchao_contracts.auditproof import Position, VerifyRequest
from kuangchao_contracts.errors import InvalidInputError, StorageError
from kuangchao_contracts.merkle import Frontier, leaf_hash
from kuangchao_contracts.notes import AuditKeys
from kuangchao_operator.audit import prove, retention, schema, tiering, tree
from kuangchao_operator.audit.store import AuditStore, Entry
from kuangchao_operator.audit.tree import Head
from kuangchao_operator.audit.verify import verify, verify_some
from tests.unit.authority.kit import Clock
from tests.unit.authority.proven import DAY, Proven
from tests.unit.authority.records import record

Edit = Callable[[Proven], None]


async def build(directory: Path) -> Proven:
    """Three days: 1-20; 21 says how that ended, up to 40; 41 the same, up to 52, of which 50-52 wait for a checkpoint.

    Checkpoints are over 10 and 20, 11 and 20, 5 and 9 records.
    """
    world = Proven(directory)
    for counts in ((10, 10), (10, 9), (4, 4)):
        for count in counts:
            await world.signed(count)
        world.clock.now += DAY
    world.clock.now -= DAY
    world.add(3)
    world.store.close()
    return world


@pytest.fixture(scope="module")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> Proven:
    return asyncio.run(build(tmp_path_factory.mktemp("genuine")))


@pytest.fixture
def world(genuine: Proven, tmp_path: Path) -> Proven:
    """A copy to do harm to."""
    world = copy.copy(genuine)
    world.directory = shutil.copytree(genuine.directory, tmp_path / "audit")
    return world


def day(number: int) -> Callable[[Proven], Path]:
    return lambda world: schema.files(world.directory)[number]


def sql(number: int, *statements: str) -> Edit:
    """Statements on the file of a day."""

    def run(world: Proven) -> None:
        connection = sqlite3.connect(day(number)(world), isolation_level=None)
        for statement in statements:
            connection.execute(statement)
        connection.close()

    return run


def flip(after: str, seq: int = 25) -> Edit:
    """One bit of the byte that follows a text in the stored bytes of a record."""

    def run(world: Proven) -> None:
        connection = sqlite3.connect(day(1)(world), isolation_level=None)
        (body,) = connection.execute("SELECT body FROM records WHERE seq = ?", (seq,)).fetchone()
        at = body.index(after.encode()) + len(after)
        changed = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        connection.execute("UPDATE records SET body = ? WHERE seq = ?", (changed, seq))
        connection.close()

    return run


def rewritten(world: Proven) -> None:
    """A day written anew with a chain and columns of its own, and with the checkpoints that were there."""
    path, other = day(1)(world), world.directory.parent / "other"
    store = AuditStore(other, Clock(world.clock.now - DAY))
    with tree.reading(path) as reader:
        first = reader.execute("SELECT body FROM records ORDER BY seq LIMIT 1").fetchone()[0]
        kept = reader.execute("SELECT * FROM checkpoints").fetchall()
    store._seq, store._head = 20, schema.StoredRecord.model_validate_json(first).previous
    store.append([Entry(schema.StoredRecord.model_validate_json(first).record)])
    store.append([Entry(record(22 + i, subject="layer:strategy")) for i in range(19)])
    store.close()
    made = schema.files(other)[0]
    connection = sqlite3.connect(made, isolation_level=None)
    connection.executemany("INSERT INTO checkpoints VALUES (?, ?, ?, ?)", kept)
    connection.close()
    shutil.copy(made, path)


def signed_by_another(world: Proven) -> None:
    """The newest day cut, and a checkpoint over what is left, by a key that is not the issuer's."""
    sql(2, "DELETE FROM records WHERE seq > 46", "DELETE FROM checkpoints WHERE size > 6")(world)
    path = day(2)(world)
    with tree.reading(path) as reader:
        bodies = [row[0] for row in reader.execute("SELECT body FROM records ORDER BY seq")]
    head = Head.of(schema.day_of(path), Frontier().extend(map(leaf_hash, bodies)))
    said = notes.parse(world.anchors[-1]).replace(size=head.size, root=head.root)
    connection = sqlite3.connect(path, isolation_level=None)
    tree.keep(connection, head, notes.sign(said, Ed25519PrivateKey.generate()))
    connection.close()


def remove(number: int) -> Edit:
    """A whole day, with what SQLite keeps beside it."""

    def run(world: Proven) -> None:
        path = day(number)(world)
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)

    return run


def also(*edits: Edit) -> Edit:
    def run(world: Proven) -> None:
        for edit in edits:
            edit(world)

    return run


def without_agent(world: Proven) -> None:
    """An index that leaves a subject out, under the text of the one that does not."""
    (text,) = first_of(world, "SELECT sql FROM sqlite_schema WHERE name = 'by_subject'")
    sql(
        1,
        "PRAGMA writable_schema = ON",
        "DROP INDEX by_subject",
        "CREATE INDEX by_subject ON records (subject, ts) WHERE subject <> 'layer:execution'",
        f"UPDATE sqlite_schema SET sql = '{text}' WHERE name = 'by_subject'",
    )(world)


def first_of(world: Proven, query: str) -> tuple[str, ...]:
    with tree.reading(day(1)(world)) as reader:
        return tuple(reader.execute(query).fetchone())


SWAP = ("UPDATE records SET seq = 99 WHERE seq = 25", "UPDATE records SET seq = 25 WHERE seq = 30",
        "UPDATE records SET seq = 30 WHERE seq = 99")  # fmt: skip
COPIED = "opid, ts, stage, op, resource, subject, job, decision, body"
DUPLICATE = f"INSERT INTO records SELECT 53, {COPIED} FROM records WHERE seq = 45"
FIRST, SECOND, THIRD = (f"audit-2027-01-{number}.sqlite" for number in (15, 16, 17))
CORPUS: dict[str, tuple[Edit, str]] = {
    "flip: quote of the JSON": (flip("{"), f"{SECOND}: record 25: cannot be parsed"),
    "flip: name of a field": (flip('"sta'), f"{SECOND}: record 25: cannot be parsed"),
    "flip: last byte": (flip('"seq":25'), f"{SECOND}: record 25: cannot be parsed"),
    "flip: value that is a column": (
        flip('"subject":"'),
        f"{SECOND}: record 25: says otherwise than its column subject",
    ),
    "flip: time": (flip('"ts":"2027-01-15T08:00:2'), f"{SECOND}: record 25: says otherwise than its column ts"),
    "flip: own number": (flip('"seq":'), f"{SECOND}: record 25: says otherwise than its column seq"),
    "flip: value that is no column": (flip('"durationUs":'), f"{SECOND}: record 26: does not follow from record 25"),
    "flip: previous": (flip('"previous":"'), f"{SECOND}: record 25: does not follow from record 24"),
    "flip: first of a day": (flip('"durationUs":', 21), f"{SECOND}: record 22: does not follow from record 21"),
    "flip: last of a day": (flip('"durationUs":', 40), f"{SECOND}: record 40: the first 20 do not give the root"),
    "flip: how the day before ended": (flip('root\\":\\"', 21), f"{SECOND}: record 21: 2027-01-15 ended otherwise"),
    "column": (sql(1, "UPDATE records SET subject = 'nobody' WHERE seq = 25"), f"{SECOND}: record 25: says otherwise"),
    "body as text": (
        sql(1, "UPDATE records SET body = CAST(body AS TEXT) WHERE seq = 25"),
        f"{SECOND}: record 25: is not",
    ),
    "body emptied": (sql(1, "UPDATE records SET body = x'' WHERE seq = 25"), f"{SECOND}: record 25: cannot be parsed"),
    "first ever deleted": (
        sql(0, "DELETE FROM records WHERE seq = 1"),
        f"{FIRST}: record 2: the records before are missing",
    ),
    "first of a day deleted": (sql(1, "DELETE FROM records WHERE seq = 21"), f"{SECOND}: record 22: does not say how"),
    "one deleted": (sql(1, "DELETE FROM records WHERE seq = 30"), f"{SECOND}: record 31: record 30 is missing"),
    "last of a day deleted": (
        sql(1, "DELETE FROM records WHERE seq = 40"),
        f"{SECOND}: ends after 19 records, before its own",
    ),
    "cut before a checkpoint": (
        sql(2, "DELETE FROM records WHERE seq > 47"),
        f"{THIRD}: ends after 7 records, before its own",
    ),
    "cut with its checkpoint": (
        sql(2, "DELETE FROM records WHERE seq > 45", "DELETE FROM checkpoints WHERE size > 5"),
        f"{THIRD}: ends after 5 records, before the anchor of 9",
    ),
    "swapped": (sql(1, *SWAP), f"{SECOND}: record 25: does not follow"),
    "duplicated": (sql(2, DUPLICATE), f"{THIRD}: record 53: does not follow from record 52"),
    "renumbered": (
        sql(1, "DELETE FROM records WHERE seq = 30", "UPDATE records SET seq = seq - 1 WHERE seq > 30"),
        f"{SECOND}: record 30: does not follow from record 29",
    ),
    "day rewritten": (rewritten, f"{SECOND}: record 31: the first 11 do not give the root of the checkpoint of 11"),
    "first day removed": (remove(0), f"{SECOND}: record 21: 2027-01-15 is missing and has no tombstone"),
    "day removed": (remove(1), f"{THIRD}: record 41: 2027-01-16 is missing and has no tombstone"),
    "newest day removed": (remove(2), f"{THIRD}: is missing, and an anchor is of this day"),
    "file damaged": (lambda world: day(1)(world).write_bytes(bytes(4_096)) and None, f"{SECOND}: "),
    "checkpoints removed": (sql(1, "DELETE FROM checkpoints"), f"{SECOND}: has no checkpoint"),
    "last checkpoint removed": (
        sql(1, "DELETE FROM checkpoints WHERE size > 11"),
        f"{SECOND}: its last 9 records have no checkpoint",
    ),
    "root of a checkpoint": (
        sql(1, "UPDATE checkpoints SET root = '00'"),
        f"{SECOND}: checkpoint of 11: its note says 11 of",
    ),
    "size of a checkpoint": (
        sql(1, "UPDATE checkpoints SET size = 9 WHERE size = 11"),
        f"{SECOND}: checkpoint of 9: its note says 11 of",
    ),
    "note of a checkpoint": (
        sql(1, "UPDATE checkpoints SET note = replace(note, 'time 1', 'time 2')"),
        f"{SECOND}: checkpoint of 11: no known key",
    ),
    "index that leaves out": (without_agent, f"{SECOND}: is damaged: row "),
    "trigger": (
        sql(1, "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM records WHERE seq = new.seq; END"),
        f"{SECOND}: holds a trigger 't' that its writer did not make so",
    ),
    "index of another text": (
        sql(1, "DROP INDEX by_ts", "CREATE INDEX by_ts ON records (ts) WHERE ts > 5"),
        f"{SECOND}: holds a index 'by_ts'",
    ),
    "view over the table": (
        sql(
            1,
            "ALTER TABLE records RENAME TO hidden",
            "CREATE VIEW records AS SELECT * FROM hidden",
        ),
        f"{SECOND}: holds a ",
    ),
    "signed by another": (signed_by_another, f"{THIRD}: checkpoint of 6: no known key has signed"),
    "removed under a tombstone": (
        also(
            lambda world: (
                [tiering.move(world.directory, schema.day_of(p)) for p in schema.files(world.directory)[:2]]
                and [retention.bury(world.directory, date(2027, 1, number)) for number in (15, 16)]
                and None
            )
        ),
        "tombstones/2027-01-16.json: is a tombstone, and no record says that its day was removed",
    ),
}


@pytest.mark.parametrize(("edit", "expected"), CORPUS.values(), ids=CORPUS)
def test_an_edit_is_found_and_placed(world: Proven, edit: Edit, expected: str) -> None:
    control = world.verify()
    assert (control.ok, control.problems, control.records, control.unsigned) == (True, (), 52, 3)
    edit(world)
    report = world.verify()
    assert not report.ok
    assert report.problems[0].startswith(expected), report.problems


def test_cut_at_the_last_checkpoint_only_loses_what_was_never_signed(world: Proven) -> None:
    """The limit: records of the last seconds are not proven yet. Nothing older can be cut with them."""
    sql(2, "DELETE FROM records WHERE seq > 49")(world)
    assert world.verify().ok
    sql(2, "DELETE FROM records WHERE seq > 48")(world)
    assert not world.verify().ok


def test_rolled_back_as_a_whole(world: Proven) -> None:
    """File and checkpoints as they were some time ago: genuine, and older than what was noted elsewhere."""
    keys = world.witness.keys
    sql(2, "DELETE FROM records WHERE seq > 45", "DELETE FROM checkpoints WHERE size > 5")(world)
    assert verify(world.directory, keys).ok
    assert verify(world.directory, keys, world.anchors[-2:-1]).ok
    (problem,) = verify(world.directory, keys, world.anchors[-1:]).problems
    assert problem == f"{THIRD}: ends after 5 records, before the anchor of 9: cut or rolled back"


async def test_another_history_of_the_same_length(world: Proven) -> None:
    """A store and notes that are genuine, but not those of the anchor."""
    other = Proven(world.directory.parent / "other")
    for count in (10, 10):
        other.add(count, "another history")
        other.clock.now += 11
        await other.checkpointer.tick()
    other.store.close()
    both = AuditKeys(issuer=world.witness.keys.issuer, keys=world.witness.keys.keys + other.witness.keys.keys)
    assert verify(other.directory, both).ok
    (problem,) = verify(other.directory, both, world.anchors[:1]).problems
    assert problem == f"{FIRST}: record 10: the first 10 do not give the root of the anchor"


def test_keys_that_are_not_those_of_the_time(world: Proven) -> None:
    (key,) = world.witness.keys.keys
    for changed, why in (
        (key.replace(created=key.created + DAY), "not in use"),
        (key.replace(retired=1), "not in use"),
    ):
        keys = world.witness.keys.replace(keys=(changed,))
        assert why in verify(world.directory, keys).problems[0]
    elsewhere = world.witness.keys.replace(issuer="kuangchao/elsewhere")
    assert "kuangchao/elsewhere is expected" in verify(world.directory, elsewhere).problems[0]


def test_without_keys_form_and_roots_are_still_checked(world: Proven) -> None:
    assert verify(world.directory).ok
    sql(1, "DELETE FROM checkpoints")(world)
    assert verify(world.directory).problems == (f"{SECOND}: has no checkpoint",)


@pytest.mark.parametrize("limit", [1, 7, 20, 40, 1_000])
@pytest.mark.parametrize("edit", [None, flip('"durationUs":'), sql(1, "DELETE FROM checkpoints WHERE size > 11")])
def test_in_parts_it_finds_the_same(world: Proven, edit: Edit | None, limit: int) -> None:
    if edit is not None:
        edit(world)
    whole = world.verify()
    position, problems, records, checkpoints = Position(), [], 0, 0
    for _ in range(100):
        report = verify_some(
            world.directory,
            VerifyRequest(position=position, keys=world.witness.keys, anchors=tuple(world.anchors[-1:]), limit=limit),
        )
        problems += report.problems
        records, checkpoints = records + report.records, checkpoints + report.checkpoints
        assert report.records <= limit
        if report.position is None:
            break
        position = Position.model_validate_json(report.position.canonical())
    assert (tuple(problems), records, checkpoints) == (whole.problems, whole.records, whole.checkpoints)
    assert (report.last, report.head, report.unsigned) == (whole.last, whole.head, whole.unsigned)


class TestOlderDays:
    def test_cold_and_gone(self, world: Proven) -> None:
        for number in (0, 1):
            tiering.move(world.directory, date(2027, 1, 15 + number))
        report = world.verify()
        assert (report.ok, report.problems, report.files, report.records) == (True, (), 3, 52)
        retention.bury(world.directory, date(2027, 1, 15))
        assert "no record says" in world.verify().problems[0]
        self.append(world, 53, stage=Stage.INTENT, decision=Decision.ERROR)
        report = world.verify()
        assert (report.ok, report.problems, report.records, report.last) == (True, (), 33, 53)

    def test_a_caller_who_was_refused_has_removed_nothing(self, world: Proven) -> None:
        """Anybody who reaches the gate has it record a denial of what he calls his operation and resource."""
        tiering.move(world.directory, date(2027, 1, 15))
        retention.bury(world.directory, date(2027, 1, 15))
        self.append(world, 53, stage=Stage.DENY, decision=Decision.DENY, layer="unknown", subject="unverified")
        assert "no record says" in world.verify().problems[0]

    def append(self, world: Proven, number: int, **changes: Any) -> None:
        """A record about the removal of the first day."""
        world.store = AuditStore(world.directory, world.clock)
        told = record(number, op="audit.retire", resource="_cluster/audit/2027-01-15", **changes)
        world.store.append([Entry(told)])
        world.store.close()

    def test_a_cold_day_that_hides_a_record_from_queries(self, world: Proven) -> None:
        tiering.move(world.directory, date(2027, 1, 15))
        part = world.directory / "cold" / "day=2027-01-15" / "part-00000.parquet"
        raw = part.read_bytes()
        footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
        part.write_bytes(raw[:footer] + raw[footer:].replace(b"layer:execution", b"layer:executioa"))
        assert world.verify().problems[0] == (
            "day=2027-01-15: part-00000.parquet: row group 0 holds other values of subject than it says"
        )

    def test_a_cold_day_that_is_not_what_was_put_away(self, world: Proven) -> None:
        tiering.move(world.directory, date(2027, 1, 15))
        shard = world.directory / "cold" / "day=2027-01-15" / "shard.json"
        shard.write_text(shard.read_text().replace('"last": 20', '"last": 21'))
        assert world.verify().problems[0] == "day=2027-01-15: holds other records than were put away"


class TestProofs:
    @pytest.mark.parametrize("seq", [1, 10, 20, 21, 33, 40, 49])
    def test_a_record_is_in_the_record(self, world: Proven, seq: int) -> None:
        proof = prove.inclusion(world.directory, seq)
        stored, checkpoint = proof.check(world.witness.keys)
        assert (stored.seq, checkpoint.day) == (seq, date(2027, 1, 15 + (seq > 20) + (seq > 40)))

    def test_what_was_changed_cannot_be_proven(self, world: Proven) -> None:
        flip('"durationUs":')(world)
        for seq in (25, 26):
            with pytest.raises(StorageError, match="does not give the root"):
                prove.inclusion(world.directory, seq)

    def test_what_is_not_there_or_not_signed(self, world: Proven) -> None:
        with pytest.raises(InvalidInputError, match="nearest legal value: 52"):
            prove.inclusion(world.directory, 53)
        with pytest.raises(StorageError, match="records up to 49 have one"):
            prove.inclusion(world.directory, 50)

    def test_from_a_cold_day(self, world: Proven) -> None:
        tiering.move(world.directory, date(2027, 1, 15))
        stored, _ = prove.inclusion(world.directory, 7).check(world.witness.keys)
        assert stored.seq == 7

    def test_every_anchor_is_continued(self, world: Proven) -> None:
        for anchor in world.anchors:
            noted = notes.parse(anchor)
            newest = prove.extension(world.directory, anchor).check(noted, world.witness.keys)
            assert newest.size == {15: 20, 16: 20, 17: 9}[noted.day.day]

    def test_a_cut_record_cannot_continue_its_anchor(self, world: Proven) -> None:
        sql(2, "DELETE FROM records WHERE seq > 45", "DELETE FROM checkpoints WHERE size > 5")(world)
        with pytest.raises(StorageError, match="has a checkpoint of 5 only, the anchor is of 9"):
            prove.extension(world.directory, world.anchors[-1])
