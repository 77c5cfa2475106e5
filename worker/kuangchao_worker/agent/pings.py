"""Pings between the agents of a job, so that a bad link shows before a collective waits for it. See links.py.

Beside the ranks: no process group, no tensor, no thread of theirs. Best effort: a socket that cannot be had, a name
that does not resolve or a peer that is dead cost figures and nothing else, and the end waits for nobody.
"""

import asyncio
import contextlib
import logging
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Final

from kuangchao_contracts.run import JoinReply
from kuangchao_worker.agent.links import MAX_WORD, Links, key_of, opened, sealed

TURN_SECONDS: Final = 1.0
AT_ONCE: Final = 64
"""Datagrams that are read in one turn of the event loop: whoever floods us must not keep heartbeats waiting."""
_SO_TIMESTAMPNS: Final = 35
"""Of Linux (asm-generic/socket.h); Python's socket has no name for it."""
_STAMP: Final = struct.Struct("@qq")
log = logging.getLogger("kuangchao.agent")


class Pings:
    """The pings of one attempt. Pod 0 listens where the attempt's store does, by UDP; the others wherever they can."""

    def __init__(self, pod: int, pods: int, reply: JoinReply, clock: Callable[[], float] = time.monotonic) -> None:
        self._reply, self._key, self._clock = reply, key_of(reply.store_prefix), clock
        self._links = Links(pod, pods, clock())
        self._pods = pods
        self._socket: socket.socket | None = None

    @property
    def metrics(self) -> dict[str, str]:
        """The worst of all links; nothing on other pods than 0, and where there are no pings."""
        return self._links.metrics(self._clock()) if self._socket is not None and self._links.pod == 0 else {}

    async def run(self) -> None:
        """Ping until cancelled; returns at once where a pod is alone or no socket can be had."""
        if self._pods == 1:
            return
        try:
            self._socket = _bound(self._reply.master_port if self._links.pod == 0 else 0)
        except OSError as error:
            log.warning("links between pods are not measured: %s", error)
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._read, self._socket)
        try:
            while True:
                await self._find_first(self._socket)
                self._send(self._socket)
                await asyncio.sleep(TURN_SECONDS)
        finally:
            loop.remove_reader(self._socket)
            last = self._links.farewell()
            if last is not None:
                self._say(self._socket, sealed(self._key, last), self._links.addresses[0])
            self._socket.close()

    async def _find_first(self, own: socket.socket) -> None:
        """Where pod 0 is; its name may resolve later than the first turn."""
        if self._links.pod == 0 or 0 in self._links.addresses:
            return
        host, port = self._reply.master_host, self._reply.master_port
        flags = socket.AI_V4MAPPED if own.family == socket.AF_INET6 else 0
        with contextlib.suppress(OSError):
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, family=own.family, type=socket.SOCK_DGRAM, flags=flags
            )
            self._links.addresses[0] = (str(found[0][4][0]), port)

    def _send(self, own: socket.socket) -> None:
        for word in self._links.pings(self._clock()):
            raw = sealed(self._key, word)
            self._links.sent(word.number, time.time_ns())
            self._say(own, raw, self._links.addresses[word.to])

    def _say(self, own: socket.socket, raw: bytes, address: tuple[str, int]) -> None:
        with contextlib.suppress(OSError):
            # a peer that is gone, or a full buffer: that word is lost, and counted as such
            own.sendto(raw, address)

    def _read(self, own: socket.socket) -> None:
        for raw, source, arrived in _received(own):
            word = opened(self._key, raw)
            answer = self._links.hear(word, source, self._clock(), arrived) if word is not None else None
            if answer is not None:
                held = max(0, time.time_ns() - arrived)
                self._say(own, sealed(self._key, answer.model_copy(update={"held": held})), source)


def _received(own: socket.socket) -> Iterator[tuple[bytes, tuple[str, int], int]]:
    """Datagrams that wait, with sender and the kernel's time of arrival: our own would include what else we do."""
    for _ in range(AT_ONCE):
        try:
            raw, extra, _, source = own.recvmsg(MAX_WORD + 1, socket.CMSG_SPACE(_STAMP.size))
        except OSError:
            return
        yield raw, (str(source[0]), int(source[1])), _stamp(extra)


def _stamp(extra: list[tuple[int, int, bytes]]) -> int:
    for level, kind, content in extra:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS) and len(content) == _STAMP.size:
            seconds, nanoseconds = _STAMP.unpack(content)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return time.time_ns()


def _bound(port: int) -> socket.socket:
    """A socket for both families where the machine has IPv6. Raises OSError when the port cannot be had."""
    own = socket.socket(socket.AF_INET6 if _has_ipv6() else socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        if own.family == socket.AF_INET6:
            own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        with contextlib.suppress(OSError):
            own.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        own.bind(("", port))
    except OSError:
        own.close()
        raise
    return own


def _has_ipv6() -> bool:
    """Whether sockets can be bound to IPv6 addresses: a kernel may know the family and have it switched off."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        probe.bind(("::", 0))
        return True
    return False
