"""Start of every rank process: it shall die with the agent, then becomes the given program. Standard library only.

A preexec function in the agent would be simpler but may deadlock, since the agent has threads (torch's store).
"""

import ctypes
import os
import signal
import sys

if __name__ == "__main__":
    parent, program = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit("the agent is gone")
    os.execvp(program[0], program)  # noqa: S606 - the program is the job's own
