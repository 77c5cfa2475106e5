"""Which address and interface lead to the other pods. Looks at routes and interfaces of this machine only."""

import fcntl
import ipaddress
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from kuangchao_contracts.errors import InvalidInputError, UnavailableError

GLOO_VARIABLE: Final = "GLOO_SOCKET_IFNAME"
NCCL_VARIABLE: Final = "NCCL_SOCKET_IFNAME"
_SIOCGIFADDR: Final = 0x8915
_IF_INET6: Final = Path("/proc/net/if_inet6")


def wait_for_port(
    host: str, port: int, timeout: float, stop: Callable[[], bool] = lambda: False, pause: float = 0.2
) -> None:
    """Wait until a name resolves and its port accepts: the name may come first and the port seconds later.

    Raises UnavailableError with the last problem when the deadline passes or `stop` says so.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), timeout=min(5.0, timeout)).close()
            return
        except OSError as error:
            problem = str(error)
        if stop():
            raise UnavailableError(f"stopped while waiting for the store at {host}:{port}")
        if time.monotonic() >= deadline:
            raise UnavailableError(f"store at {host}:{port} did not answer within {timeout:.0f} s: {problem}")
        time.sleep(pause)


def local_address(host: str, port: int) -> str:
    """The address of this machine from which packets to a peer leave; nothing is sent. Never a link-local one."""
    family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        address = str(probe.getsockname()[0])
    if ipaddress.ip_address(address).is_link_local:
        raise UnavailableError(f"{host} is reached only from the link-local address {address}, which peers cannot use")
    return address


def interface_of(address: str) -> str | None:
    """Name of the interface that has this address, or None when it cannot be told."""
    wanted = ipaddress.ip_address(address)
    if wanted.version == 4 and wanted.is_loopback:
        return _loopback()
    names = [name for _, name in socket.if_nameindex()]
    if wanted.version == 4:
        return next((name for name in names if _ipv4(name) == address), None)
    return _ipv6_interfaces().get(wanted.packed.hex())


def interface_variables(environment: Mapping[str, str], host: str, port: int, *, nccl: bool) -> dict[str, str]:
    """What to add to the environment so that gloo, and NCCL if it is used, take the interface that leads to the master.

    What the user has set stands. Raises InvalidInputError for what gloo cannot take: a list, an exclusion (NCCL takes
    both), a name that is no interface; UnavailableError where only a link-local address leads to the master.
    """
    given = environment.get(GLOO_VARIABLE)
    if given is not None:
        _require_interface(given, host, port)
    wanted = {name for name in (GLOO_VARIABLE, *((NCCL_VARIABLE,) if nccl else ())) if name not in environment}
    routed = interface_of(local_address(host, port)) if wanted else None
    if routed is None:
        return {}
    # NCCL takes a name for a prefix unless it is told otherwise: eth1 would be eth10 as well
    return {name: f"={routed}" if name == NCCL_VARIABLE else routed for name in sorted(wanted)}


def _require_interface(given: str, host: str, port: int) -> None:
    if given in (name for _, name in socket.if_nameindex()):
        return
    listed = not given or given[0] in "^=" or "," in given
    why = "gloo takes the name of one interface, no list or exclusion" if listed else "is no interface of this pod"
    raise InvalidInputError(GLOO_VARIABLE, given, why, interface_of(local_address(host, port)))


def _loopback() -> str | None:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if (_ipv4(name) or "").startswith("127.")), None)


def _ipv4(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _ipv6_interfaces() -> dict[str, str]:
    """Interface by address as 32 hex digits."""
    if not _IF_INET6.exists():
        return {}
    rows = (line.split() for line in _IF_INET6.read_text().splitlines())
    return {row[0]: row[5] for row in rows}
