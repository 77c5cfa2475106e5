"""Cold shards: the bytes of the hot ones, in files that nothing but our folder's own can be read beside."""

import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kuangchao_contracts.errors import StorageError
from kuangchao_operator.audit import cold, schema
from kuangchao_operator.audit.cold import Cold, Row
from kuangchao_operator.audit.store import AuditStore, Entry
from kuangchao_operator.audit.tiering import move
from tests.unit.authority.kit import Clock
from tests.unit.authority.records import record
from tests.unit.authority.shards import day, fill, numbers

ODD = ['a "quoted", text', "back\\slash", "'; DROP TABLE records; --", "NULL", "", "ünïcode", "tab\tand\nline", "\\N"]


def hot_rows(directory: Path) -> list[Row]:
    with closing(schema.open_reader(schema.files(directory)[0])) as reader:
        return reader.execute("SELECT * FROM records ORDER BY seq").fetchall()


def test_columns_are_those_of_the_table(tmp_path: Path) -> None:
    fill(tmp_path, [1])
    with closing(schema.open_reader(schema.files(tmp_path)[0])) as reader:
        names = [name for _, name, *_ in reader.execute("PRAGMA table_info(records)")]
    assert names == list(cold.COLUMNS)


def test_every_byte_comes_back(tmp_path: Path) -> None:
    fill(tmp_path, [[record(number, subject=text, detail=text, job=text) for number, text in enumerate(ODD)]])
    before = hot_rows(tmp_path)
    move(tmp_path, day())
    with Cold(tmp_path) as reader:
        assert list(reader.rows(cold.shard_of(tmp_path, day()))) == before
        assert reader.flaws(cold.shard_of(tmp_path, day())) == []
    for number, text in enumerate(ODD):
        assert numbers(tmp_path, subject=text) == [number]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_text('{outside}')",
        "SELECT * FROM read_parquet('{inside}/../secret.parquet')",
        "COPY (SELECT 1) TO '{outside}'",
        "ATTACH '{outside}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
    ],
)
def test_nothing_outside_is_reached(tmp_path: Path, statement: str) -> None:
    import duckdb

    store, outside = tmp_path / "audit", tmp_path / "secret.parquet"
    outside.write_text("secret")
    fill(store, [1])
    move(store, day())
    inside = cold.shard_of(store, day())
    with Cold(store) as reader:
        reader.select([inside], "seq > ?", [0], 1)
        with pytest.raises(duckdb.Error):
            reader._open().execute(statement.format(outside=outside, inside=inside))
    assert outside.read_text() == "secret"


def test_many_cold_days_are_read_together_and_in_order(tmp_path: Path) -> None:
    fill(tmp_path, [4] * 12)
    before = numbers(tmp_path)
    for number in range(11):
        move(tmp_path, day(number))
    for limit in (3, 1_000):
        assert numbers(tmp_path, limit=limit) == before


def test_a_damaged_file_is_said_to_be(tmp_path: Path) -> None:
    fill(tmp_path, [3, 3, 3, 1])
    for number in range(3):
        move(tmp_path, day(number))
    part = Path(cold.parts(cold.shard_of(tmp_path, day(1)))[0])
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(StorageError):
        numbers(tmp_path)
    shutil.rmtree(part.parent)  # a day that is gone, as one whose time is over, is no error
    assert len(numbers(tmp_path)) == 7


def test_duckdb_is_not_loaded_before_a_cold_day_is_asked_for(tmp_path: Path) -> None:
    fill(tmp_path, [1])
    script = (
        "import sys; from pathlib import Path\n"
        "import kuangchao_operator.layers.governance.service, kuangchao_operator.audit.sink\n"
        "from kuangchao_contracts.audit import AuditQuery; from kuangchao_operator.audit.query import query\n"
        "assert len(query(Path(sys.argv[1]), AuditQuery()).records) == 1\n"
        "sys.exit('duckdb' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], env={"PYTHONPATH": ":".join(sys.path)}, timeout=60, check=False
    )
    assert done.returncode == 0


class TestFlaws:
    """A shard whose records are all there, and one of them in no answer."""

    @pytest.fixture
    def part(self, tmp_path: Path) -> Path:
        some = [record(number, subject="zoe" if number == 7 else "adam", resource=f"n/jobs/{'x' * 400}-{number}")
                for number in range(10)]  # fmt: skip
        fill(tmp_path, [some])
        move(tmp_path, day())
        return cold.shard_of(tmp_path, day()) / "part-00000.parquet"

    def flaws(self, part: Path) -> list[str]:
        with Cold(part.parents[2]) as reader:
            return reader.flaws(part.parent)

    def test_none(self, part: Path) -> None:
        assert self.flaws(part) == []
        assert numbers(part.parents[2], subject="zoe") == [7]

    def test_a_statistic_that_was_changed(self, part: Path) -> None:
        raw = part.read_bytes()
        footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
        changed = raw[:footer] + raw[footer:].replace(b"zoe", b"bob")
        assert changed != raw
        part.write_bytes(changed)
        assert numbers(part.parents[2], subject="zoe") == [], "or there would be nothing to find"
        assert self.flaws(part) == ["part-00000.parquet: row group 0 holds other values of subject than it says"]

    def test_a_bloom_filter(self, part: Path) -> None:
        import duckdb

        made = part.with_name("made")
        duckdb.execute(f"COPY (FROM read_parquet('{part}')) TO '{made}' (FORMAT parquet)")
        made.rename(part)
        assert "row group 0 has a Bloom filter of subject" in "".join(self.flaws(part))


def test_groups_of_a_part_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "FORM", "(FORMAT parquet, ROW_GROUP_SIZE 2048, WRITE_BLOOM_FILTER false)")
    store = AuditStore(tmp_path, Clock())
    store.append([Entry(record(number, subject=f"{number:05}")) for number in range(5_000)])
    store.close()
    move(tmp_path, day())
    with Cold(tmp_path) as reader:
        assert reader.flaws(cold.shard_of(tmp_path, day())) == []
