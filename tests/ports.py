"""Ports for servers that a test starts some time after it has chosen them, or ends and starts again."""

import contextlib
import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Free ports of loopback that no outgoing connection is given, unless the kernel gives them all: such a connection
    could take the port of a server that does not listen yet, or not just now."""
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
                found.append(int(probe.getsockname()[1]))
    assert len(found) == count, f"only {len(found)} of {count} ports are free"
    return found


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
