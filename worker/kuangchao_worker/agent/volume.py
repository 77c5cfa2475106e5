"""What is done to files on the checkpoint volume. Blocking; no clock, no network, no decisions.

The directory of a job carries an owner mark: one job can never overwrite another job's checkpoints.
"""

import contextlib
import hashlib
import shutil
from pathlib import Path

from pydantic import ValidationError

from kuangchao_contracts.checkpoint import CheckpointManifest, CheckpointRef, FileDigest
from kuangchao_contracts.durable import sync_path
from kuangchao_contracts.errors import StorageError
from kuangchao_contracts.oplogfile import DIRECTORY as OPLOGS
from kuangchao_contracts.oplogfile import manifest_name
from kuangchao_contracts.ranges import to_ranges
from kuangchao_contracts.run import LaunchSpec
from kuangchao_worker.pod.shards import (
    DAMAGED_SUFFIX,
    MANIFEST,
    OWNER,
    WORKING_SUFFIX,
    ShardsDone,
    done_name,
    file_digest,
    parse_name,
    write_durably,
)


class CheckpointPathInUseError(StorageError):
    """The directory belongs to another job."""


def claim(base: Path, launch: LaunchSpec) -> None:
    """Make the directory ours. Raises CheckpointPathInUseError, or OSError when the volume cannot be written."""
    job_uid = launch.job_uid
    mark = base / OWNER
    if not mark.exists():
        base.mkdir(parents=True, exist_ok=True)
        mine = base / f"{OWNER}.{job_uid}"
        write_durably(mine, f"{job_uid} {launch.namespace}/{launch.job}".encode())
        # a link appears whole or not at all, and fails if another job was first
        with contextlib.suppress(FileExistsError):
            mark.hardlink_to(mine)
        mine.unlink(missing_ok=True)
        sync_path(base)
    owner, _, name = mark.read_text("utf-8", "replace").strip().partition(" ")
    if owner != job_uid:
        raise CheckpointPathInUseError(
            f"spec.checkpoint.storage.path={launch.checkpoint_path!r}: the directory belongs to job "
            f"{name[:256] or '?'} with uid {owner[:64] or '?'}; choose another path or none"
        )


def sweep(base: Path, attempt: int) -> None:
    """Delete what earlier attempts left unfinished; nothing of a finished checkpoint."""
    for entry in base.iterdir():
        named = parse_name(entry.name)
        if named is not None and named[2] and named[1] < attempt:
            remove(entry)


def remove(directory: Path) -> None:
    """Delete a directory as far as possible."""
    shutil.rmtree(directory, ignore_errors=True)


def read_done(working: Path, world_size: int) -> list[ShardsDone] | str:
    """Parts of all ranks, or what is missing."""
    parts = []
    for rank in range(world_size):
        try:
            parts.append(ShardsDone.model_validate_json((working / done_name(rank)).read_bytes()))
        except FileNotFoundError:
            return f"rank {rank} has not finished writing"
        except ValidationError:
            return f"{done_name(rank)} is not readable"
        if parts[-1].rank != rank:
            return f"{done_name(rank)} names rank {parts[-1].rank}"
    return parts


def manifest(launch: LaunchSpec, step: int, attempt: int, parts: list[ShardsDone]) -> CheckpointManifest:
    """What the parts add up to."""
    files = sorted((file for part in parts for file in part.files), key=lambda file: file.path)
    return CheckpointManifest(
        job_uid=launch.job_uid,
        step=step,
        attempt=attempt,
        world_size=launch.plan.world_size,
        plan_hash=launch.plan.hash,
        torch_version=parts[0].torch_version,
        files=tuple(files),
        oplogs={str(part.rank): part.oplog for part in parts if part.oplog} or None,
        oplogs_without_file=to_ranges(part.rank for part in parts if not part.oplog_kept)[:4096] or None,
        every_steps=launch.checkpoint_every_steps,
    )


def seal(working: Path, content: CheckpointManifest) -> Path:
    """Make a complete directory a checkpoint: manifest, names durable, renamed, its name durable.

    Raises OSError, or StorageError when a file is not as long as its rank said.
    """
    for file in content.files:
        size = (working / file.path).stat().st_size
        if size != file.size:
            raise StorageError(f"{file.path} has {size} bytes, its rank wrote {file.size}")
    for rank in range(content.world_size):
        (working / done_name(rank)).unlink()
    write_durably(working / MANIFEST, content.canonical())
    sync_path(working)
    finished = working.with_name(working.name.removesuffix(WORKING_SUFFIX))
    working.rename(finished)
    sync_path(finished.parent)
    return finished


def verify(base: Path, checkpoint: CheckpointRef) -> str | None:
    """What is wrong with a committed checkpoint, None when every byte is as committed.

    Raises StorageError when the volume cannot be read, which says nothing about the checkpoint.
    """
    directory = base / checkpoint.path
    try:
        raw = (directory / MANIFEST).read_bytes()
        if hashlib.sha256(raw).hexdigest() != checkpoint.digest:
            return "manifest is not the committed one"
        content = CheckpointManifest.model_validate_json(raw)
        return next((problem for file in content.files if (problem := _differs(directory, file))), None)
    except (FileNotFoundError, NotADirectoryError) as error:
        return f"{Path(error.filename).name} is missing"
    except ValidationError:
        return "manifest is not readable"
    except OSError as error:
        raise StorageError(f"cannot read {checkpoint.path}: {error.strerror}") from None


def _differs(directory: Path, file: FileDigest) -> str | None:
    found = file_digest(directory, file.path)
    if found.size != file.size:
        return f"{file.path} has {found.size} bytes instead of {file.size}"
    return None if found == file else f"{file.path} was changed"


def quarantine(base: Path, checkpoint: CheckpointRef) -> None:
    """Put a damaged checkpoint aside for people to look at."""
    directory = base / checkpoint.path
    with contextlib.suppress(OSError):
        directory.rename(directory.with_name(directory.name + DAMAGED_SUFFIX))


def prune(base: Path, path: str) -> None:
    """Delete a checkpoint that the ledger has dropped; only a direct child with a checkpoint's name.

    Its manifest stays: with the digest in the audit store it pins the operation logs of its attempt.
    """
    named = parse_name(path)
    if named is None:
        return
    with contextlib.suppress(OSError):
        (base / path / MANIFEST).rename(base / OPLOGS / manifest_name(named[1]))
    remove(base / path)
