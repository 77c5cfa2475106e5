"""Has the kernel end a process with the one that it was forked from, however that ends."""

import ctypes
import signal
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """SIGKILL for this process as soon as its parent has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
