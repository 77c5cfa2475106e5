"""Cold shards of the audit store: one folder of Parquet files per UTC day, read and written by DuckDB.

A shard holds the bytes of every record as they were stored, so it proves as much as the SQLite file it came from.
DuckDB is loaded at first use, since most operators never ask for a cold day, and locked down: it opens no file
outside the folder that it was given, loads no extension, and none of this can be undone on the connection.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import Field, ValidationError

from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import StorageError
from kuangchao_contracts.merkle import EMPTY_ROOT
from kuangchao_operator.audit import schema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FOLDER: Final = "cold"
DAY: Final = "day="
SUMMARY: Final = "shard.json"
COLUMNS: Final = {
    "seq": "BIGINT",
    "opid": "VARCHAR",
    "ts": "BIGINT",
    "stage": "VARCHAR",
    "op": "VARCHAR",
    "resource": "VARCHAR",
    "subject": "VARCHAR",
    "job": "VARCHAR",
    "decision": "VARCHAR",
    "body": "VARCHAR",
}
"""Those of the table of the hot shard, in its order; `body` becomes a BLOB on the way."""
READ: Final = "read_parquet(?, hive_partitioning = false)"
"""The day is in the folder's name; as a column it would come on top of ours."""
ROW_GROUP: Final = 16_384
FORM: Final = f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP}, WRITE_BLOOM_FILTER false)"
"""No Bloom filters: whoever changes one hides records from queries, and it costs too much to check them."""
MEMORY: Final = "128MB"
FETCH: Final = 4_096
FILTERED: Final = tuple(COLUMNS)[:-1]
"""What a query may ask for: all but `body`."""
READ_NUMBERED: Final = "read_parquet(?, hive_partitioning = false, file_row_number = true)"
STATISTICS: Final = (
    "row_group_id, path_in_schema, row_group_num_rows, stats_null_count, bloom_filter_offset, "
    "stats_min_value, stats_max_value, stats_min, stats_max"
)
"""By these a query leaves row groups out unread."""
Row = tuple[int | str | bytes, ...]
Value = str | int


class ShardSummary(Contract):
    """What must be known of a day once its records are gone: enough to check proofs and to continue the chain."""

    day: date
    size: Annotated[int, Field(ge=0)]
    root: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] = EMPTY_ROOT.hex()
    """Root of the day's Merkle tree."""
    checkpoint: Annotated[str, Field(max_length=1_024)] = ""
    """The signed note over the whole day; empty in a store without an issuer of notes."""
    first: Annotated[int, Field(ge=0)] = 0
    last: Annotated[int, Field(ge=0)] = 0
    head: Annotated[str, Field(max_length=64)] = ""
    """Hash of the last record: `previous` of the first one of the next day."""


def shard_of(directory: Path, day: date) -> Path:
    """The folder of a day, whether it exists or not."""
    return directory / FOLDER / f"{DAY}{day.isoformat()}"


def days(directory: Path) -> list[date]:
    """Days that have a cold shard, oldest first."""
    return [day for _, day in schema.dated(directory / FOLDER, DAY)]


def parts(shard: Path) -> list[str]:
    """The Parquet files of a shard in the order of their records."""
    return [str(path) for path in sorted(shard.glob("part-*.parquet"))]


def summary(shard: Path) -> ShardSummary:
    """What the shard says of itself. Raises StorageError; FileNotFoundError when there is no such shard."""
    try:
        return ShardSummary.model_validate_json((shard / SUMMARY).read_bytes())
    except ValidationError as error:
        raise StorageError(f"{shard.name}/{SUMMARY} cannot be parsed") from error


def write_summary(path: Path, content: ShardSummary) -> None:
    """Write it for good: on disk when this returns."""
    with path.open("w", encoding="ascii") as file:
        json.dump(content.wire(), file, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())


class Cold:
    """A locked-down DuckDB that sees the cold folder of one store, connected at first use. For one thread."""

    def __init__(self, directory: Path) -> None:
        self._folder = (directory / FOLDER).absolute()
        self._connection: DuckDBPyConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._connection is not None:
            self._connection.close()

    def select(self, shards: Sequence[Path], where: str, values: Sequence[Value], limit: int) -> list[bytes]:
        """Bodies of shards that match, oldest first. Raises StorageError."""
        statement = f"SELECT body FROM {READ} WHERE {where} ORDER BY seq LIMIT ?"  # noqa: S608  # our own text only
        files = [part for shard in shards for part in parts(shard)]
        with self._errors():
            found = self._open().execute(statement, [files, *values, limit]).fetchall() if files else []
        return [body for (body,) in found]

    def rows(self, shard: Path) -> Iterator[Row]:
        """All rows as they stand in the files. Raises StorageError."""
        with self._errors():
            for part in parts(shard):
                found = self._open().execute(f"SELECT {', '.join(COLUMNS)} FROM {READ}", [part])  # noqa: S608  # our names
                while some := found.fetchmany(FETCH):
                    yield from some

    def flaws(self, shard: Path) -> list[str]:
        """Row groups that say of themselves otherwise than they hold: a query would pass them over.

        Raises StorageError.
        """
        with self._errors():
            return [f"{Path(part).name}: {flaw}" for part in parts(shard) for flaw in self._misleading(part)]

    def _misleading(self, part: str) -> Iterator[str]:
        said = self._open().execute(f"SELECT {STATISTICS} FROM parquet_metadata(?) ORDER BY 1, 2", [part]).fetchall()  # noqa: S608  # our names
        ends = list(itertools.accumulate({group: rows for group, _, rows, *_ in said}.values()))
        which = " ".join(f"WHEN file_row_number < {end} THEN {group}" for group, end in enumerate(ends))
        bounds = ", ".join(f"min({name}), max({name})" for name in FILTERED)
        held = f"SELECT CASE {which} END AS place, {bounds} FROM {READ_NUMBERED} GROUP BY place"  # noqa: S608  # our names
        real = {
            place: dict(zip(FILTERED, zip(found[::2], found[1::2], strict=True), strict=True))
            for place, *found in self._open().execute(held, [part]).fetchall()
        }
        for group, name, _, nulls, bloom, *limits in said:
            if bloom is not None:
                yield f"row group {group} has a Bloom filter of {name}, which its writer does not make"
            if name in FILTERED and not _encloses(limits, nulls, real[group][name]):
                yield f"row group {group} holds other values of {name} than it says"

    def write_part(self, source: Path, target: Path) -> None:
        """Turn a file of comma-separated rows, sorted by `seq`, into a Parquet file. Raises StorageError."""
        statement = (
            f"COPY (SELECT * REPLACE (encode(body) AS body) FROM read_csv(?, columns={COLUMNS}, auto_detect=false, "  # noqa: S608  # the same
            "header=false, delim=',', quote='\"', escape='\"', new_line='\\n', allow_quoted_nulls=false)) "
            f"TO {_quoted(target)} {FORM}"
        )
        with self._errors():
            self._open().execute(statement, [str(source)])

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        self._open()
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            raise StorageError(f"a cold shard cannot be used: {type(error).__name__}") from error

    def _open(self) -> "DuckDBPyConnection":
        if self._connection is None:
            try:
                import duckdb
            except ImportError as error:
                raise StorageError("cold shards need the package duckdb: install kuangchao[operator]") from error
            off = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
            self._connection = duckdb.connect(":memory:", config={**off, "threads": 1, "memory_limit": MEMORY})
            for setting in (
                f"allowed_directories = [{_quoted(self._folder)}]",
                "temp_directory = ''",
                "enable_external_access = false",
                "lock_configuration = true",
            ):
                self._connection.execute(f"SET {setting}")
        return self._connection


def _encloses(limits: Sequence[str | None], nulls: int | None, real: Sequence[Value]) -> bool:
    """Whether what a row group says (least and greatest value, twice) allows for what it holds."""
    least, greatest = real
    kind: Any = type(least)
    lows, highs = ([kind(limit) for limit in some if limit is not None] for some in (limits[::2], limits[1::2]))
    return not nulls and all(low <= least for low in lows) and all(high >= greatest for high in highs)


def _quoted(path: Path) -> str:
    text = str(path).replace("'", "''")
    return f"'{text}'"
