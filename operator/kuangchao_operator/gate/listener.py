"""Connections of the gate: how many, how long they may say nothing, and what is said of bytes that are no HTTP.

Never repeats or logs what was received: it may be a token.
"""

import asyncio
import logging
import ssl
from collections import Counter
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from kuangchao_contracts.wire import ErrorReply

log = logging.getLogger(__name__)
IDLE_SECONDS: Final = 30.0
"""A whole request head must arrive within this time of the connection's start or of the last answer."""
HANDSHAKE_SECONDS: Final = 10.0
SHUTDOWN_SECONDS: Final = 5.0
LINGER_SECONDS: Final = 2.0
"""How long the rest of a body is read and thrown away after an answer that did not need it."""
MAX_HEADER_BYTES: Final = 16 * 1024
"""More than the largest token: one that is too large is refused, and recorded, by the gate."""
MAX_CONNECTIONS: Final = 1_024
"""Of one address."""


class Listener:
    """Serves an application over TLS. One per server."""

    def __init__(
        self, app: web.Application, idle_seconds: float = IDLE_SECONDS, connections: int = MAX_CONNECTIONS
    ) -> None:
        self._options: dict[str, Any] = {
            "access_log": None,
            "keepalive_timeout": idle_seconds,
            "lingering_time": LINGER_SECONDS,
            "max_field_size": MAX_HEADER_BYTES,
            "auto_decompress": False,  # nobody of ours compresses, and a small body must not become a large one
        }
        self._runner = web.AppRunner(app, shutdown_timeout=SHUTDOWN_SECONDS)
        self._peers: Counter[str] = Counter()
        self._limit = connections
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen; the port that was taken (port 0 takes any)."""
        await self._runner.setup()
        self._server = await asyncio.get_running_loop().create_server(
            self._connection,
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if tls else None,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS if tls else None,
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and end open calls within seconds."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    def _connection(self) -> "Connection":
        manager = self._runner.server
        assert manager is not None
        return Connection(manager, self._peers, self._limit, self._options)


class Connection(web.RequestHandler):
    """One connection. Beyond the limit of its address it ends before a byte of it is read."""

    def __init__(self, manager: web.Server, peers: Counter[str], limit: int, options: dict[str, Any]) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **options)
        self._peers, self._limit = peers, limit
        self._peer: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it, or refuse it."""
        peer = str((transport.get_extra_info("peername") or ("",))[0])
        if self._peers[peer] >= self._limit:
            assert isinstance(transport, asyncio.Transport)
            transport.abort()
            return
        self._peers[peer] += 1
        self._peer = peer
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget it."""
        if self._peer is None:
            return
        self._peers[self._peer] -= 1
        if not self._peers[self._peer]:
            del self._peers[self._peer]
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp would log, and answer with, the header that it could not read."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        log.debug("no HTTP from %s: %s", request.remote, type(exc).__name__)
        answer = web.json_response(ErrorReply(error="InvalidInput", message="this is not HTTP").wire(), status=status)
        answer.force_close()
        return answer
