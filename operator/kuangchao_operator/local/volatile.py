"""The part of a run that must not outlive it, in the system's temporary directory: sockets, keys and tokens.

A runner that is killed cannot remove its own; the next one does, told by a lock that dies with its holder.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "kuangchao-run-"


class Volatile:
    """A directory with a short path (that of a unix socket may have 107 bytes), removed with the run."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self._lock = path, lock

    @classmethod
    def create(cls) -> "Volatile":
        """A new directory; what killed runs of this user have left is removed first. Raises OSError."""
        _remove_abandoned()
        hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
        lock = _open(hidden)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # by its name it is found only now that it is locked
        return cls(hidden.rename(hidden.with_name(hidden.name.removeprefix("."))), lock)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_abandoned() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # locked by a run that goes on, another user's, or removed by somebody else meanwhile
        with contextlib.suppress(OSError):
            lock = _open(path)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
