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


OplogHeads = Annotated[
    dict[
        Annotated[str, Field(pattern="^[0-9]{1,7}$")],
        Annotated[str, Field(pattern="^[0-9]{1,20}:[0-9a-f]{0,64}$")],
    ],
    Field(max_length=16_384),
]
"""Rank -> "<count>:<head>" of its operation log."""


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
    files: Annotated[tuple[FileDigest, ...], Field(max_length=65_536, fail_fast=True)]
    oplogs: OplogHeads | None = None
    """What each rank's operation log held when it saved. The audit record of the commit has this manifest's digest, so
    the store pins every line up to there. None in manifests of an older release."""
    oplogs_without_file: Annotated[str, Field(max_length=4096)] | None = None
    """Ranks of which no line is kept in a file, as `3,7-9`: by setting, or because it could not be written."""
    every_steps: Annotated[int, Field(ge=1)] | None = None
    """How many steps may lie between two checkpoints: what a crash can lose."""


class CheckpointRef(Contract):
    """A committed checkpoint as the ledger knows it; `digest` is that of the manifest."""

    step: Step
    attempt: Annotated[int, Field(ge=1)]
    path: RelativePath
    digest: Sha256
    time: datetime | None = None
