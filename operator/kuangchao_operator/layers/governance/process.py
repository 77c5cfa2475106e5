"""The governance process: audit queries over HTTP, for the CLI through the API server's service proxy, and metrics.

Its account may only read. It forwards to the operator's gate under its own lease, so every query is itself recorded.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import ValidationError

from kuangchao_contracts.audit import AuditQuery
from kuangchao_contracts.errors import InvalidInputError, KuangchaoError
from kuangchao_contracts.wire import to_reply
from kuangchao_operator.layers.governance.upstream import Upstream
from kuangchao_operator.layers.governance.watcher import Watcher

log = logging.getLogger(__name__)
PORT: Final = 8080
AUDIT_PATH: Final = "/v1/audit"


class GovernanceProcess:
    """Serves until stopped."""

    def __init__(self, upstream: Upstream, watcher: Watcher, registry: CollectorRegistry) -> None:
        self._upstream, self._watcher, self._registry = upstream, watcher, registry

    def app(self) -> web.Application:
        """The application, without a socket: GET only."""
        app = web.Application(client_max_size=1024)
        app.router.add_get(AUDIT_PATH, self._audit)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def serve(self, host: str, port: int, stop: asyncio.Event, listening: Callable[[int], None]) -> None:
        """Serve until `stop`; `listening` is told the port."""
        runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=5.0)
        await runner.setup()
        watching = asyncio.create_task(self._watcher.keep(), name="audit-watcher")
        try:
            await web.TCPSite(runner, host, port).start()
            listening(int(runner.addresses[0][1]))
            await stop.wait()
        finally:
            watching.cancel()
            await runner.cleanup()

    async def _audit(self, request: web.Request) -> web.Response:
        try:
            page = await self._upstream.query(parse_query(request))
        except KuangchaoError as error:
            status, reply = to_reply(error)
            return web.json_response(reply.wire(), status=status)
        return web.json_response(page.wire())

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": "text/plain; version=0.0.4"})


def parse_query(request: web.Request) -> AuditQuery:
    """Filters of a URL: the wire names of AuditQuery, each at most once. Raises InvalidInputError."""
    values = dict(request.query)
    if len(values) != len(request.query):
        raise InvalidInputError("query", "(not shown)", "a filter is given twice")
    try:
        return AuditQuery.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise InvalidInputError(field, values.get(field, ""), first["msg"]) from None
