"""The process from which the ranks of all pods of a run are forked: torch is imported once, while the run begins.

Only for CPU devices: what a library finds out of GPUs when it is imported depends on those that a pod may see.
"""

import os
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.descriptor import DeviceKind
from kuangchao_operator.local.launcher import NO_GPUS, agent_environment
from kuangchao_operator.local.processes import MARK, Child
from kuangchao_operator.local.rundir import RunDirectory

BACKLOG: Final = 1_024
"""Agents that may wait until torch is imported."""


async def shared_forge(job: TrainingJob, kind: DeviceKind, run: RunDirectory, stack: AsyncExitStack) -> Path | None:
    """Start it; the socket for agents, or None where each has a forge of its own.

    Raises UnavailableError when it cannot be started.
    """
    if kind is DeviceKind.GPU:
        return None
    path = run.forge_socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(BACKLOG)
        command = [sys.executable, "-m", "kuangchao_worker.forge", str(listener.fileno()), "--shared"]
        # scripts import what they want by themselves
        command += ["--ranks"] if job.spec.task is not None else []
        environment = {**agent_environment(os.environ, job), **NO_GPUS, MARK: str(run.root)}
        child = await Child.start(command, environment, run.root / "forge.log", (listener.fileno(),))
    stack.push_async_callback(child.stop, 0.0)
    return path
