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

from kuangchao_contracts.errors import InvalidInputError

PREFIX: Final = "kuangchao-run-"
SOCKET_PATH_BYTES: Final = 107
"""What Linux takes as the path of a unix socket."""
WITHIN_BYTES: Final = 16
"""The longest that a run adds to its directory's: `/p999/m9999.sock`, the socket of a pod in an attempt."""


class Volatile:
    """A directory with a short path, as it has sockets, removed with the run."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self._lock = path, lock

    @classmethod
    def create(cls) -> "Volatile":
        """A new directory; what killed runs of this user have left is removed first.

        Raises InvalidInputError where the temporary directory cannot hold one.
        """
        base = _base()
        _remove_abandoned(base)
        try:
            hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=base))
            lock = _open(hidden)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # by its name it is found only now that it is locked
            return cls(hidden.rename(hidden.with_name(hidden.name.removeprefix("."))), lock)
        except OSError as error:
            raise InvalidInputError("TMPDIR", str(base), f"cannot hold sockets and keys: {error.strerror}") from None

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _base() -> Path:
    try:
        base = Path(tempfile.gettempdir())
    except OSError as error:
        given = os.environ.get("TMPDIR", "")
        raise InvalidInputError("TMPDIR", given, f"cannot hold sockets and keys: {error.strerror}") from None
    made = len(os.fsencode(base / f"{PREFIX}12345678"))  # as many characters as tempfile adds
    if made + WITHIN_BYTES > SOCKET_PATH_BYTES:
        why = f"is {made + WITHIN_BYTES - SOCKET_PATH_BYTES} bytes too long for the path of a unix socket in it"
        raise InvalidInputError("TMPDIR", str(base), why, "/tmp")  # noqa: S108 - a hint, nothing is made there
    return base


def _remove_abandoned(base: Path) -> None:
    for path in base.glob(f"{PREFIX}*"):
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
