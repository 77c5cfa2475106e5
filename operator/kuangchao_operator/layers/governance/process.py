"""The governance process: audit queries on its pod's loopback address, health and metrics on all addresses.

Its account may only read. It forwards to the operator's gate under its own lease, so every query is itself recorded.
The audit port knows no callers, so it must never listen where another pod can dial it: whoever asks comes by the API
server's port-forward, whose permission is then the permission to read the trail.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import ValidationError

from kuangchao_contracts.audit import AuditQuery
from kuangchao_contracts.auditproof import ProveRequest, VerifyRequest
from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import InvalidInputError, KuangchaoError
from kuangchao_contracts.wire import to_reply
from kuangchao_operator.layers.governance.upstream import Upstream
from kuangchao_operator.layers.governance.watcher import Watcher

log = logging.getLogger(__name__)
LOOPBACK: Final = "127.0.0.1"
AUDIT_PORT: Final = 8080
METRICS_PORT: Final = 9090
AUDIT_PATH: Final = "/v1/audit"
VERIFY_PATH: Final = "/v1/audit/verify"
PROVE_PATH: Final = "/v1/audit/prove"
T = TypeVar("T", bound=Contract)


class GovernanceProcess:
    """Serves until stopped."""

    def __init__(self, upstream: Upstream, watcher: Watcher, registry: CollectorRegistry) -> None:
        self._upstream, self._watcher, self._registry = upstream, watcher, registry

    def audit_app(self) -> web.Application:
        """What is served on the loopback address only: GET of audit records."""
        app = web.Application(client_max_size=1024)
        app.router.add_get(AUDIT_PATH, self._audit)
        app.router.add_get(VERIFY_PATH, self._verify)
        app.router.add_get(PROVE_PATH, self._prove)
        return app

    def open_app(self) -> web.Application:
        """What anybody in the cluster may read: GET of health and metrics."""
        app = web.Application(client_max_size=1024)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def serve(self, host: str, port: int, audit_port: int, stop: asyncio.Event) -> None:
        """Serve until `stop`. `host` is for health and metrics; the audit port has no choice of address."""
        watching = asyncio.create_task(self._watcher.keep(), name="audit-watcher")
        try:
            async with _serving(self.audit_app(), LOOPBACK, audit_port), _serving(self.open_app(), host, port):
                await stop.wait()
        finally:
            watching.cancel()

    async def _audit(self, request: web.Request) -> web.Response:
        return await _answer(parse_query, request, self._upstream.query)

    async def _verify(self, request: web.Request) -> web.Response:
        return await _answer(lambda request: _parse(request, VerifyRequest), request, self._upstream.verify)

    async def _prove(self, request: web.Request) -> web.Response:
        return await _answer(lambda request: _parse(request, ProveRequest), request, self._upstream.prove)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": "text/plain; version=0.0.4"})


@asynccontextmanager
async def _serving(app: web.Application, host: str, port: int) -> AsyncIterator[None]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        log.info("listening on %s port %d", host, port)
        yield
    finally:
        await runner.cleanup()


async def _answer(
    parse: Callable[[web.Request], T], request: web.Request, ask: Callable[[T], Awaitable[Contract]]
) -> web.Response:
    try:
        reply = await ask(parse(request))
    except KuangchaoError as error:
        status, refusal = to_reply(error)
        return web.json_response(refusal.wire(), status=status)
    return web.json_response(reply.wire())


def _parse(request: web.Request, model: type[T]) -> T:
    """The request in the parameter `request`, as JSON. Raises InvalidInputError."""
    try:
        return model.model_validate_json(request.query.get("request", ""))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        raise InvalidInputError("request", "(not shown)", first["msg"]) from None


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
