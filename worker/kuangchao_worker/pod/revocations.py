"""What was taken back before its time, as the agent hears it from the feed and hands it to its ranks: one small file.

A Secret or ConfigMap that is mounted takes a minute to change; this takes as long as the agent needs to write it.
"""

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from kuangchao_contracts.base import Contract
from kuangchao_contracts.keys import Jwks

REVOCATIONS: Final = "revocations.json"


class Revocations(Contract):
    """Ids of tokens and of keys that are good for nothing any more."""

    tokens: Annotated[frozenset[str], Field(max_length=4_096)] = frozenset()
    keys: Annotated[frozenset[str], Field(max_length=64)] = frozenset()
    jwks: Jwks | None = None
    """All keys, while some are denied: the one that signs instead is not in the mounted copy yet."""


def write_revocations(run_directory: Path, revoked: Revocations) -> None:
    """Replace the file in one step. Raises OSError."""
    path = run_directory / REVOCATIONS
    part = path.with_suffix(".part")
    part.write_bytes(revoked.canonical())
    part.rename(path)


class RevocationFile:
    """Reads the file again when it has changed; one that cannot be read leaves what was revoked before."""

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / REVOCATIONS
        self._seen: tuple[int, int] | None = None
        self.current = Revocations()

    def refresh(self) -> bool:
        """Look at the file; whether it said something new."""
        try:
            found = self._path.stat()
            version = (found.st_mtime_ns, found.st_ino)
            if version == self._seen:
                return False
            self.current = Revocations.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return False
        self._seen = version
        return True
