"""One warm process for all agents of a machine, as a local run has them: each agent that connects gets a forked forge.

Agents of one machine would otherwise import the same modules once each. Runs no user code, and never forks while it has
more than one thread. A forge of it is no child of its agent; it ends when that agent hangs up.
"""

import gc
import os
import signal
import socket
from collections.abc import Callable
from typing import Final, NoReturn

from kuangchao_worker.forge.mortal import die_with_parent
from kuangchao_worker.pod.outputs import OUTPUTS

HELLO_SECONDS: Final = 10.0
"""Limit for an agent that has connected to say where its pod's output goes."""


def share(listener: socket.socket, serve: Callable[[socket.socket], NoReturn]) -> NoReturn:
    """Fork `serve(connection)` for each agent, until whoever started this process ends."""
    # how a forge ended is of no interest: its agent hears it hang up
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    while True:
        connection, _ = listener.accept()
        with connection:
            outputs = _hello(connection)
            # who gets no forge starts its ranks cold
            if len(outputs) == len(OUTPUTS) and threads() == 1 and os.fork() == 0:
                _become(listener, connection, outputs, serve)
            for descriptor in outputs:
                os.close(descriptor)


def _hello(connection: socket.socket) -> list[int]:
    connection.settimeout(HELLO_SECONDS)
    try:
        return socket.recv_fds(connection, 1, len(OUTPUTS))[1]
    except OSError:
        return []


def threads() -> int:
    """How many this process has. Only one with a single thread may fork: the child has no other."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names only


def _become(
    listener: socket.socket, connection: socket.socket, outputs: list[int], serve: Callable[[socket.socket], NoReturn]
) -> NoReturn:
    """In the child: be the forge of one agent."""
    try:
        die_with_parent()
        listener.close()
        for given, own in zip(outputs, OUTPUTS, strict=True):
            os.dup2(given, own)
            os.close(given)
        connection.setblocking(True)
        serve(connection)
    finally:
        os._exit(1)
