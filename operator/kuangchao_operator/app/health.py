"""Liveness, readiness and metrics over plain HTTP. Reads; changes nothing."""

from collections.abc import Callable

from aiohttp import web

from kuangchao_operator.app.metrics import Metrics


class HealthServer:
    """`/healthz` answers while the event loop turns, `/readyz` while the operator decides and records; `/metrics`."""

    def __init__(self, metrics: Metrics, ready: Callable[[], bool]) -> None:
        self._metrics, self._ready = metrics, ready
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port that was taken."""
        app = web.Application()
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/readyz", self._is_ready)
        app.router.add_get("/metrics", self._exposition)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, shutdown_timeout=1.0).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _alive(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _is_ready(self, _: web.Request) -> web.Response:
        return web.Response(text="ok") if self._ready() else web.Response(status=503, text="not ready")

    async def _exposition(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), content_type="text/plain", charset="utf-8")
