"""mTLS listener for API-server audit events. Accepts only clients with a certificate of the given CA."""

import json
import logging
import ssl
from pathlib import Path
from typing import Final

from aiohttp import web

from kuangchao_operator.audit.k8s import KubernetesIntake

log = logging.getLogger(__name__)
PORT: Final = 9444
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
EVENTS_PATH: Final = "/v1/k8s-audit"


def intake_tls(certificate: Path, key: Path, client_ca: Path) -> ssl.SSLContext:
    """A server context that demands a client certificate of `client_ca`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(client_ca)
    return context


class IntakeServer:
    """Serves one intake."""

    def __init__(self, intake: KubernetesIntake) -> None:
        self._intake = intake
        self._runner: web.AppRunner | None = None

    def app(self) -> web.Application:
        """The application, without a socket."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post(EVENTS_PATH, self._events)
        return app

    async def start(self, host: str, port: int, tls: ssl.SSLContext) -> int:
        """Listen; the port that was taken."""
        self._runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=5.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, ssl_context=tls).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _events(self, request: web.Request) -> web.Response:
        try:
            body = json.loads(await request.read())
        except (ValueError, RecursionError):
            return web.Response(status=400, text="body is not JSON")
        if not isinstance(body, dict):
            return web.Response(status=400, text="body is not an EventList")
        taken = self._intake.take(body)
        log.debug("took %d API-server events", taken)
        return web.Response(text="ok")
