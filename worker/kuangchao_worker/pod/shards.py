"""How a checkpoint looks on the volume while it is made and when it is finished.

`step-<n>.att-<a>.tmp/` collects the files of all ranks and one `rank-<r>.done` each; the agent of pod 0 adds
`manifest.json` and renames the directory to `step-<n>.att-<a>`. A directory without manifest is not a checkpoint.
"""

import hashlib
import os
import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from kuangchao_contracts.base import Contract
from kuangchao_contracts.checkpoint import FileDigest

MANIFEST: Final = "manifest.json"
OWNER: Final = ".kuangchao-owner"
WORKING_SUFFIX: Final = ".tmp"
DAMAGED_SUFFIX: Final = ".bad"
_NAME: Final = re.compile(r"step-(\d+)\.att-(\d+)(\.tmp)?")
_CHUNK: Final = 1 << 20


class ShardsDone(Contract):
    """A rank's part of a checkpoint is on the volume. `oplog` is "<count>:<head>" at that step; `oplog_kept`: so
    are the lines of its operation log up to there."""

    rank: Annotated[int, Field(ge=0)]
    files: Annotated[tuple[FileDigest, ...], Field(max_length=64)]
    oplog: Annotated[str, Field(max_length=90)] = ""
    oplog_kept: bool = True
    torch_version: Annotated[str, Field(max_length=64)]


def finished_name(step: int, attempt: int) -> str:
    """Directory of a finished checkpoint."""
    return f"step-{step}.att-{attempt}"


def working_name(step: int, attempt: int) -> str:
    """Directory of a checkpoint that is being written."""
    return finished_name(step, attempt) + WORKING_SUFFIX


def parse_name(name: str) -> tuple[int, int, bool] | None:
    """(step, attempt, whether it is still being written) of a directory name; None for any other name."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2]), match[3] is not None) if match else None


def done_name(rank: int) -> str:
    """File that says that a rank's files are complete."""
    return f"rank-{rank}.done"


def file_digest(directory: Path, name: str) -> FileDigest:
    """Size and SHA-256 of a file as it is on the volume now."""
    digest, size = hashlib.sha256(), 0
    with (directory / name).open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return FileDigest(path=name, size=size, sha256=digest.hexdigest())


def write_durably(path: Path, content: bytes) -> None:
    """Write a small file so that it is there whole or not at all, also after a crash of the node."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
