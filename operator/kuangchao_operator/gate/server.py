"""The gate over HTTPS. Parses bytes into calls and errors into answers; judges nothing itself.

Answers to refused tokens are the same for each class, so that nothing can be learnt from them; headers that a client
sets about itself (addresses, names) are never read.
"""

import asyncio
import json
import logging
import re
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from aiohttp import web
from pydantic import ValidationError

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import new_opid
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.keys import Jwks
from kuangchao_contracts.wire import CALL_PATH, CallEnvelope, ErrorReply, to_reply
from kuangchao_operator.gate.limits import Buckets, FailureLimits
from kuangchao_operator.gate.listener import IDLE_SECONDS, Listener

log = logging.getLogger(__name__)
PORT: Final = 8443
MAX_BODY_BYTES: Final = 8 * 1024 * 1024
SMALL_BODY_BYTES: Final = 16 * 1024
"""Larger bodies, and those of a length unknown, are read only once the token is known to be good."""
LARGE_BURST: Final = 2.0 * MAX_BODY_BYTES
LARGE_PER_SECOND: Final = 1024.0 * 1024.0
"""Bytes of larger bodies that one subject may send. Parsing takes the whole process some 0.2 s for each MiB."""
LARGE_SUBJECTS: Final = 16_384
MAX_MEMBERS: Final = 16_384
"""Of one JSON object, as many as a request may have (heads of operation logs): each that is wrong costs an error."""
BODY_SECONDS: Final = 20.0
REQUEST_SECONDS: Final = 60.0
JWKS_PATH: Final = "/v1/jwks"
HEALTH_PATH: Final = "/healthz"
_BEARER = re.compile(r"Bearer ([A-Za-z0-9._-]+)", re.ASCII)


def _nothing(_: str) -> bool:
    return False


class GateServer:
    """Serves a gate to workers and to governance."""

    def __init__(
        self,
        gate: Gate,
        jwks: Callable[[], Jwks],
        request_seconds: float = REQUEST_SECONDS,
        others: Iterable[web.RouteDef] = (),
        body_seconds: float = BODY_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        limits: FailureLimits | None = None,
        minted: Callable[[str], bool] = _nothing,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`others`: routes of neighbours that answer at the same port. `minted` knows tokens that we gave out."""
        self._gate, self._jwks, self._request_seconds, self._others = gate, jwks, request_seconds, tuple(others)
        self._body_seconds, self._idle_seconds = body_seconds, idle_seconds
        self._limits = FailureLimits(time.monotonic) if limits is None else limits
        self._minted = minted
        self._large = Buckets(monotonic, LARGE_BURST, LARGE_PER_SECOND, LARGE_SUBJECTS)
        self._listener: Listener | None = None

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
        self._listener = Listener(self.app(), self._idle_seconds)
        return await self._listener.start(host, port, tls)

    async def stop(self) -> None:
        """Stop listening and end open calls within seconds."""
        if self._listener is not None:
            await self._listener.stop()
            self._listener = None

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
            self._limits.failed(request.remote, error)
            return _reply(error, opid)
        except Exception:
            log.exception("call failed (operation %s)", opid)
            return web.json_response(ErrorReply(error="Internal", opid=opid).wire(), status=500)

    async def _answer(self, request: web.Request, opid: str) -> web.Response:
        token, op = bearer(request), request.match_info["op"]
        await self._admit(request, token, op, opid)
        async with asyncio.timeout(self._body_seconds):
            envelope = _envelope(await _body(request))
        answer = await self._gate.call_wire(token, op, envelope.resource, envelope.request, opid)
        return web.json_response(answer.wire())

    async def _admit(self, request: web.Request, token: str | None, op: str, opid: str) -> None:
        """Refuse floods unread, and do not read much for somebody who is not known."""
        if self._limits.exhausted(request.remote) and not self._known(token):
            error = e.TooManyFailuresError("too many failures from this address")
            await self._gate.refuse(error, op, opid)
            raise error
        length = request.content_length
        if length is None or length > SMALL_BODY_BYTES:
            subject = (await self._gate.require_good(token, op, opid)).sub
            if self._large.empty(subject):
                much = e.TooMuchSentError("too many large bodies from this subject")
                await self._gate.refuse(much, op, opid)
                raise much
            self._large.charge(subject, MAX_BODY_BYTES if length is None else length)

    def _known(self, token: str | None) -> bool:
        """Whether this very token is ours, without a look at it: who shares an address with a flood comes with one."""
        return token is not None and (self._gate.recognises(token) or self._minted(token))


def bearer(request: web.Request) -> str | None:
    """The token of a request; None unless there is exactly one Authorization header with exactly one token."""
    headers = request.headers.getall("Authorization", [])
    match = _BEARER.fullmatch(headers[0]) if len(headers) == 1 else None
    return match[1] if match else None


async def _body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except ConnectionError:  # the caller went away; that is no fault of ours
        raise e.InvalidInputError("body", "(not shown)", "ended before its end") from None


def _envelope(body: bytes) -> CallEnvelope:
    try:
        return CallEnvelope.model_validate(json.loads(body, object_pairs_hook=_unique))
    except (ValidationError, ValueError, RecursionError):
        why = 'must be {"resource": <text>, "request": <object>} without repeated keys, and no object too large'
        raise e.InvalidInputError("body", "(not shown)", why) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    if len(pairs) > MAX_MEMBERS:
        raise ValueError("an object has too many members")
    return result


def _reply(error: e.KuangchaoError, opid: str) -> web.Response:
    status, body = to_reply(error, opid)
    return web.json_response(body.wire(), status=status)
