"""How a process that has run code of the user ends: at once, whatever that code has left behind."""

import contextlib
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process. What had to be finished is finished: threads of torch may wait for dead peers for ever, and so
    may threads and exit hooks of a task. Standard streams may be closed, or be no streams at all.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
