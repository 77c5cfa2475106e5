"""Start of every child of the agent: it has the kernel end it with the agent, then becomes the given program.

Standard library only: each child pays for its imports.

A preexec function in the agent would be simpler but may deadlock, since the agent has threads (torch's store).
"""

import ctypes
import os
import signal
import sys


def launched(*program: str) -> list[str]:
    """The command line by which a program is started so that it ends with this process."""
    return [sys.executable, "-S", "-E", __file__, str(os.getpid()), *program]


if __name__ == "__main__":
    parent, program = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit("the agent is gone")
    os.execvp(program[0], program)  # noqa: S606 - the program is the job's own
