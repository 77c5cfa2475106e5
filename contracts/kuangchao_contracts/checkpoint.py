"""Checkpoints: the manifest on the volume and the entry in the job's ledger (its status)."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from kuangchao_contracts.base import Contract

Sha256 = Annotated[str, Field(max_length=64, pattern="^[0-9a-f]{64}$")]
RelativePath = Annotated[
    str, Field(max_length=512, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_.][A-Za-z0-9._-]*)*$")
]
Step = Annotated[int, Field(ge=0)]


class FileDigest(Contract):
    """One file of a checkpoint."""

    path: RelativePath
    size: Annotated[int, Field(ge=0)]
    sha256: Sha256


class CheckpointManifest(Contract):
    """`manifest.json` in a checkpoint directory; written last, so a directory without it is not a checkpoint."""

    job_uid: Annotated[str, Field(max_length=64)]
    step: Step
    attempt: Annotated[int, Field(ge=1)]
    world_size: Annotated[int, Field(ge=1)]
    plan_hash: Sha256
    torch_version: Annotated[str, Field(max_length=64)]
    files: Annotated[tuple[FileDigest, ...], Field(max_length=65_536)]


class CheckpointRef(Contract):
    """A committed checkpoint as the ledger knows it; `digest` is that of the manifest."""

    step: Step
    attempt: Annotated[int, Field(ge=1)]
    path: RelativePath
    digest: Sha256
    time: datetime | None = None
