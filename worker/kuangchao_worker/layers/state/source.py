"""A committed checkpoint as restoring reads it: files by name, each checked against the manifest before it is opened.

Never trusts a file that the manifest does not list, and never unpickles code.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kuangchao_contracts.checkpoint import CheckpointManifest, CheckpointRef
from kuangchao_contracts.errors import CheckpointCorruptError
from kuangchao_worker.layers.state import files

SHARED_FILE: Final = "shared.pt"
"""Weights, optimizer and schedule, equal on all data ranks, so rank 0 writes them for all."""
_LAYOUT: Final = re.compile(r"layout-(\d+)\.pt")


def rank_file(rank: int) -> str:
    """What differs between ranks: the random number generators."""
    return f"rank-{rank}.pt"


def memory_file(rank: int) -> str:
    """What a plug-in remembers on a rank."""
    return f"plugin-{rank}.pt"


def shard_file(rank: int) -> str:
    """A rank's pieces of tensors, and plain values."""
    return f"shard-{rank}.pt"


def layout_file(rank: int) -> str:
    """Which pieces these are."""
    return f"layout-{rank}.pt"


@dataclass(frozen=True)
class Source:
    """Files of one checkpoint."""

    directory: Path
    manifest: CheckpointManifest
    checkpoint: CheckpointRef
    lent: bool = False
    """Tensors stay in their files, for who reads them once."""

    @classmethod
    def open(cls, directory: Path, checkpoint: CheckpointRef) -> "Source":
        """Raises CheckpointCorruptError unless the manifest is the committed one."""
        return cls(directory, files.read_manifest(directory, checkpoint), checkpoint)

    def read(self, name: str) -> dict[str, Any] | None:
        """Content of a file; None when there is none. Raises CheckpointCorruptError if it was changed."""
        content = files.load(self.directory, self.manifest, name, lent=self.lent)
        if content is not None and content["step"] != self.checkpoint.step:
            raise CheckpointCorruptError(f"{self.checkpoint.path}/{name} is of step {content['step']}")
        return dict(content) if content is not None else None

    def layouts(self) -> dict[int, dict[str, Any]]:
        """What each rank that wrote pieces says of them."""
        found = {}
        for entry in self.manifest.files:
            named = _LAYOUT.fullmatch(entry.path)
            content = self.read(entry.path) if named else None
            if named and content is not None:
                found[int(named[1])] = content["entries"]
        return found
