"""What every process that must not lose a file in a crash needs and the standard library lacks."""

import os
from pathlib import Path


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, survive a crash. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
