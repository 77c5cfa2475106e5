"""The end of a day's records: the whole cold shard goes, oldest first, and a tombstone of it stays for ever.

The tombstone keeps what checks need: how the day ended, and the checkpoint that was signed over it.
"""

import shutil
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from kuangchao_contracts.durable import sync_path
from kuangchao_contracts.errors import StorageError
from kuangchao_operator.audit import cold
from kuangchao_operator.audit.cold import ShardSummary

FOLDER: Final = "tombstones"
SUFFIX: Final = ".json"
RETIRED: Final = ".retired-"


def expired(hot: Iterable[date], stored: Iterable[date], today: date, retention_days: int) -> list[date]:
    """Cold days to remove, oldest first. One that is younger than a hot day stays: the trail has no holes."""
    oldest_hot, limit = min(hot, default=date.max), today - timedelta(days=retention_days)
    return sorted(day for day in stored if day <= limit and day < oldest_hot)


def tombstone_of(directory: Path, day: date) -> Path:
    """The file of a day's tombstone, whether it exists or not."""
    return directory / FOLDER / f"{day.isoformat()}{SUFFIX}"


def tombstones(directory: Path) -> list[ShardSummary]:
    """All tombstones, oldest day first. Raises StorageError."""
    found = sorted((directory / FOLDER).glob(f"????-??-??{SUFFIX}"))
    try:
        return [ShardSummary.model_validate_json(path.read_bytes()) for path in found]
    except ValidationError as error:
        raise StorageError(f"a tombstone in {directory.name}/{FOLDER} cannot be parsed") from error


def bury(directory: Path, day: date) -> None:
    """Remove the records of a day for good. Stopped anywhere, it is done again. Raises StorageError."""
    shard, stone = cold.shard_of(directory, day), tombstone_of(directory, day)
    try:
        content = cold.summary(shard)
        stone.parent.mkdir(mode=0o700, exist_ok=True)
        unfinished = stone.with_suffix(".unfinished")
        cold.write_summary(unfinished, content)
        unfinished.rename(stone)
        sync_path(stone.parent)
        sync_path(directory)
        # out of every reader's sight at once, and only then file by file
        shard.rename(shard.with_name(RETIRED + shard.name))
        sync_path(shard.parent)
        sweep(directory)
    except OSError as error:
        raise StorageError(f"{shard.name} cannot be removed: {type(error).__name__}: {error}") from error


def sweep(directory: Path) -> None:
    """Remove what an earlier removal has left. Raises StorageError."""
    try:
        for leftover in (directory / cold.FOLDER).glob(f"{RETIRED}*"):
            shutil.rmtree(leftover)
    except OSError as error:
        raise StorageError(f"old records cannot be removed: {error}") from error
