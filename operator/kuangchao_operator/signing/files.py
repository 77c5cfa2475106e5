"""Secret and state files of the issuer: private to its account, replaced as a whole, safe on disk before use."""

import os
from pathlib import Path

from kuangchao_contracts.durable import sync_path


def write_private(path: Path, data: bytes) -> None:
    """Put a file in place atomically with mode 0600; after return it survives a crash."""
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_path(path.parent)


def private_directory(path: Path) -> Path:
    """A directory that only this account may enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path
