"""The gate over HTTPS. Parses bytes into calls and errors into answers; judges nothing itself.

Answers to refused tokens are the same for each class, so that nothing can be learnt from them; headers that a client
sets about itself (addresses, names) are never read.
"""

import asyncio
import json
import logging
import re
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final

from aiohttp import web
from pydantic import ValidationError

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import new_opid
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.keys import Jwks
from kuangchao_contracts.wire import CALL_PATH, CallEnvelope, ErrorReply, to_reply

log = logging.getLogger(__name__)
PORT: Final = 8443
MAX_BODY_BYTES: Final = 8 * 1024 * 1024
REQUEST_SECONDS: Final = 60.0
JWKS_PATH: Final = "/v1/jwks"
HEALTH_PATH: Final = "/healthz"
_BEARER = re.compile(r"Bearer ([A-Za-z0-9._-]+)", re.ASCII)


class GateServer:
    """Serves a gate to workers and to governance."""

    def __init__(
        self,
        gate: Gate,
        jwks: Callable[[], Jwks],
        request_seconds: float = REQUEST_SECONDS,
        others: Iterable[web.RouteDef] = (),
    ) -> None:
        """`others`: routes of neighbours that answer at the same port."""
        self._gate, self._jwks, self._request_seconds, self._others = gate, jwks, request_seconds, tuple(others)
        self._runner: web.AppRunner | None = None

    def app(self) -> web.Application:
        """The application, without a socket."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post(CALL_PATH + "{op}", self._call)
        app.router.add_get(HEALTH_PATH, self._health)
        app.router.add_get(JWKS_PATH, self._keys)
        app.router.add_routes(self._others)
        return app

    async def start(self, host: str, port: int, tls: ssl.SSLContext) -> int:
        """Listen; the port that was taken (port 0 takes any)."""
        runner = web.AppRunner(self.app(), access_log=None, keepalive_timeout=75.0, shutdown_timeout=5.0)
        await runner.setup()
        self._runner = runner
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
        return int(runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening and end open calls within seconds."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _keys(self, _: web.Request) -> web.Response:
        return web.json_response(self._jwks().wire())

    async def _call(self, request: web.Request) -> web.Response:
        opid = new_opid()
        try:
            async with asyncio.timeout(self._request_seconds):
                return await self._answer(request, opid)
        except TimeoutError:
            return _reply(e.UnavailableError("the call took too long"), opid)
        except web.HTTPRequestEntityTooLarge:
            body = ErrorReply(error="TooLarge", message=f"body exceeds {MAX_BODY_BYTES} bytes", opid=opid)
            return web.json_response(body.wire(), status=413)
        except e.KuangchaoError as error:
            return _reply(error, opid)
        except Exception:
            log.exception("call failed (operation %s)", opid)
            return web.json_response(ErrorReply(error="Internal", opid=opid).wire(), status=500)

    async def _answer(self, request: web.Request, opid: str) -> web.Response:
        envelope = _envelope(await request.read())
        token, op = bearer(request), request.match_info["op"]
        answer = await self._gate.call_wire(token, op, envelope.resource, envelope.request, opid)
        return web.json_response(answer.wire())


def bearer(request: web.Request) -> str | None:
    """The token of a request; None unless there is exactly one Authorization header with exactly one token."""
    headers = request.headers.getall("Authorization", [])
    match = _BEARER.fullmatch(headers[0]) if len(headers) == 1 else None
    return match[1] if match else None


def _envelope(body: bytes) -> CallEnvelope:
    try:
        return CallEnvelope.model_validate(json.loads(body, object_pairs_hook=_unique))
    except (ValidationError, ValueError, RecursionError):
        why = 'must be {"resource": <text>, "request": <object>} without repeated keys'
        raise e.InvalidInputError("body", "(not shown)", why) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _reply(error: e.KuangchaoError, opid: str) -> web.Response:
    status, body = to_reply(error, opid)
    return web.json_response(body.wire(), status=status)
