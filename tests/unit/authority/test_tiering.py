"""A day on its way from SQLite to Parquet: checked before the original goes, and stopped anywhere without a loss."""

import fcntl
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from kuangchao_contracts.errors import StorageError
from kuangchao_contracts.merkle import Frontier, leaf_hash
from kuangchao_operator.audit import cold, schema, tiering, tree
from kuangchao_operator.audit.store import AuditStore
from kuangchao_operator.audit.tiering import due, move
from kuangchao_operator.audit.tree import Head
from tests.unit.authority.kit import NOW, Clock
from tests.unit.authority.records import record
from tests.unit.authority.shards import DAY, StoppedError, day, fill, numbers, stop


def ago(days: int) -> date:
    return day() - timedelta(days=days)


@pytest.mark.parametrize(
    ("hot", "newest_filled", "expected"),
    [
        ([9, 8, 7, 6, 0], 0, [9, 8, 7]),
        ([9, 8, 7, 6], 6, [9, 8, 7]),
        ([9, 8], 8, [9]),  # nothing newer: the chain is continued from it
        ([9, 8, 0], 8, [9]),
        ([9, 8], None, []),
        ([], None, []),
    ],
)
def test_which_days_are_due(hot: list[int], newest_filled: int | None, expected: list[int]) -> None:
    newest = None if newest_filled is None else ago(newest_filled)
    assert due([ago(n) for n in hot], newest, day(), 7) == [ago(n) for n in expected]


def test_a_day_moves_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    fill(tmp_path, [50, 1])
    with closing(schema.open_reader(schema.file_of(tmp_path, day()))) as reader:
        bodies = [body for (body,) in reader.execute("SELECT body FROM records ORDER BY seq")]
    summary = move(tmp_path, day())
    assert summary.root == Frontier().extend(map(leaf_hash, bodies)).root().hex()
    assert (summary.size, summary.first, summary.last, summary.head) == (50, 1, 50, schema.digest(bodies[-1]))
    assert cold.summary(cold.shard_of(tmp_path, day())) == summary
    assert [path.name for path in tmp_path.glob(f"*{day()}*")] == []
    assert move(tmp_path, day()) == summary


def test_a_day_of_many_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering, "PART_ROWS", 8)
    fill(tmp_path, [50, 1])
    before = numbers(tmp_path)
    move(tmp_path, day())
    assert len(cold.parts(cold.shard_of(tmp_path, day()))) == 7
    assert numbers(tmp_path, limit=9) == before


STEPS = {
    "_settle": 1,
    "_summary": 1,
    "_convert": 1,
    "_write_rows": 2,
    "_require": 1,
    "_publish": 1,
    "sync_path": 4,
    "_drop": 1,
}
"""How often each is called while a day moves."""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("name", "nth"), [(name, nth + 1) for name, calls in STEPS.items() for nth in range(calls)])
def test_stopped_anywhere_nothing_is_lost_or_double(tmp_path: Path, name: str, nth: int, after: bool) -> None:
    fill(tmp_path, [20, 3])
    before = numbers(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiering, name, stop(getattr(tiering, name), nth, after))
        with pytest.raises(StoppedError):
            move(tmp_path, day())
    assert numbers(tmp_path) == before
    move(tmp_path, day())
    assert numbers(tmp_path) == before
    assert [schema.day_of(path) for path in schema.files(tmp_path)] == [day(1)]
    names = {path.name for path in (tmp_path / cold.FOLDER).iterdir()}
    assert names == {tiering.LOCK, cold.shard_of(tmp_path, day()).name}


def tampered(directory: Path, statement: str) -> None:
    with closing(sqlite3.connect(schema.file_of(directory, day()), isolation_level=None)) as connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE records SET body = CAST(replace(CAST(body AS TEXT), 'launch', 'lounge') AS BLOB) WHERE seq = 4",
        "UPDATE records SET subject = 'nobody' WHERE seq = 4",
        "UPDATE records SET body = x'ff00' WHERE seq = 4",
        "DELETE FROM records WHERE seq = 4",
    ],
)
def test_what_was_tampered_with_stays_for_the_auditor(tmp_path: Path, statement: str) -> None:
    fill(tmp_path, [9, 1])
    tampered(tmp_path, statement)
    with pytest.raises(StorageError):
        move(tmp_path, day())
    assert schema.file_of(tmp_path, day()).exists()
    assert cold.days(tmp_path) == []


def test_a_damaged_copy_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Parquet files are what is checked, not what was read from SQLite."""
    fill(tmp_path, [9, 1])
    original = tiering._write_rows

    def losing(table: Path, rows: Any) -> int:
        count = original(table, rows)
        table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
        return count

    monkeypatch.setattr(tiering, "_write_rows", losing)
    with pytest.raises(StorageError, match="does not hold"):
        move(tmp_path, day())
    assert numbers(tmp_path)[:9] == list(range(9))


def checkpoint(directory: Path, size: int, root: str | None = None) -> None:
    with closing(schema.open_writer(schema.file_of(directory, day()))) as writer:
        head = Head.of(day(), tree.frontier(writer, size))
        tree.keep(writer, head, "the note")
        if root is not None:
            writer.execute("UPDATE checkpoints SET root = ?", (root,))


def test_the_final_checkpoint_goes_along(tmp_path: Path) -> None:
    fill(tmp_path, [9, 1])
    checkpoint(tmp_path, 9)
    assert move(tmp_path, day()).checkpoint == "the note"


@pytest.mark.parametrize(("size", "root"), [(8, None), (9, "0" * 64)])
def test_a_day_whose_end_was_not_signed_stays(tmp_path: Path, size: int, root: str | None) -> None:
    fill(tmp_path, [9, 1])
    checkpoint(tmp_path, size, root)
    with pytest.raises(StorageError, match="checkpoint"):
        move(tmp_path, day())
    assert schema.file_of(tmp_path, day()).exists()


def test_one_move_at_a_time(tmp_path: Path) -> None:
    fill(tmp_path, [1, 1])
    (tmp_path / cold.FOLDER).mkdir()
    with (tmp_path / cold.FOLDER / tiering.LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="another process"):
            move(tmp_path, day())
    move(tmp_path, day())


def test_the_writer_goes_on_where_it_was_when_all_other_days_are_cold(tmp_path: Path) -> None:
    fill(tmp_path, [5, 5])
    move(tmp_path, day())
    store = AuditStore(tmp_path, Clock(NOW + DAY))
    assert store.head[0] == 11  # ten, and the first record of the second day
    store.close()


@pytest.mark.parametrize(("which", "status"), [(0, 0), (5, 1)])
def test_as_a_process(tmp_path: Path, which: int, status: int) -> None:
    fill(tmp_path, [[record(1)], [record(2)]])
    done = subprocess.run(
        [sys.executable, "-m", "kuangchao_operator.audit.tiering", tmp_path, day(which).isoformat()],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status
    if status == 0:
        assert cold.ShardSummary.model_validate_json(done.stdout) == cold.summary(cold.shard_of(tmp_path, day()))
    else:
        assert "neither hot nor cold" in done.stderr
