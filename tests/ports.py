"""Ports for servers that a test starts some time after it has chosen them, or ends and starts again."""

import contextlib
import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
MARK = "\0kuangchao-port-{}"
"""Address without a file whose holder has chosen a port, bound or not; `cluster/lib/api.sh` heeds it too."""
_MARKS: list[socket.socket] = []
"""Those of this process: they go with it."""


def free_ports(count: int) -> list[int]:
    """Free ports of loopback that no outgoing connection is given, unless the kernel gives them all: such a connection
    could take the port of a server that does not listen yet, or not just now. Nor are they given to another process of
    tests as long as this one lives."""
    low, high = map(int, RANGE.read_text().split())
    candidates = [port for port in range(10_000, 30_000) if not low <= port <= high] or [0] * count
    with contextlib.ExitStack() as held:
        found: list[int] = []
        for port in random.sample(candidates, len(candidates)):
            if len(found) == count:
                break
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                chosen = int(probe.getsockname()[1])
                _mark(chosen)
                found.append(chosen)
    assert len(found) == count, f"only {len(found)} of {count} ports are free"
    return found


def _mark(port: int) -> None:
    """Take a port for this process. Raises OSError if another one has."""
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(MARK.format(port))
    except OSError:
        mark.close()
        raise
    _MARKS.append(mark)


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
