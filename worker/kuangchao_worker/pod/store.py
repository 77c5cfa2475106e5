"""The store over which the ranks of an attempt find each other. Pod 0 serves it, from a process that its forge makes,
or from the agent where there is no forge.

It outlives every rank, and each attempt has its own server, port and prefix: keys of an older attempt are never read.
"""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kuangchao_contracts.errors import UnavailableError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST_PORT: Final = 10_240
TRIES: Final = 32


class AttemptStore:
    """A running store server. `close` ends it."""

    def __init__(self, server: "TCPStore", prefix: str) -> None:
        self._server: TCPStore | None = server
        self.port, self.prefix = int(server.port), prefix

    def close(self) -> None:
        """Stop serving; torch ends the server with its last reference."""
        self._server = None


def open_store(attempt: int, choose: Callable[[int], int] = secrets.randbelow) -> AttemptStore:
    """Start a store on a free port. Blocks for the import of torch, so call it in a thread.

    Raises UnavailableError when no port can be had.
    """
    from torch._C._distributed_c10d import TCPStore  # torch.distributed has it, but not for type checkers
    from torch.distributed import DistNetworkError

    ports = candidate_ports(_ephemeral_range(), choose)
    problem = ""
    for port in ports:
        for loopback in ("127.0.0.1", "::1"):  # the server listens on all addresses; this is its own way to itself
            try:
                server = TCPStore(loopback, port, is_master=True, wait_for_workers=False)
            except DistNetworkError as error:
                problem = str(error).splitlines()[0]
            else:
                return AttemptStore(server, f"kc/{attempt}/{secrets.token_hex(12)}")
    raise UnavailableError(f"no free port for the store after {len(ports)} tries: {problem}")


def candidate_ports(ephemeral: tuple[int, int], choose: Callable[[int], int]) -> list[int]:
    """Ports to try: drawn at random outside the range from which the kernel gives ports to clients."""
    low, high = ephemeral
    free = [port for port in range(LOWEST_PORT, 65_536) if not low <= port <= high] or list(range(LOWEST_PORT, 65_536))
    return [free[choose(len(free))] for _ in range(TRIES)]


def _ephemeral_range() -> tuple[int, int]:
    try:
        low, high = EPHEMERAL.read_text().split()
    except (OSError, ValueError):
        return (32_768, 60_999)
    return int(low), int(high)
