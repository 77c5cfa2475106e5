"""The exchange of account tokens over HTTPS: `POST /v1/token`. Bytes in, bundle or one and the same refusal out."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import new_opid
from kuangchao_contracts.wire import TOKEN_PATH, ErrorReply, TokenBundle, to_reply
from kuangchao_operator.gate.server import bearer

log = logging.getLogger(__name__)
REQUEST_SECONDS: Final = 30.0
SIDE_BY_SIDE: Final = 32
"""Exchanges at one time: each costs a review by the API server, also when a stranger asks."""
NO_STORE: Final = {"Cache-Control": "no-store"}


class AccountDoor:
    """Serves an exchange beside the gate's calls."""

    def __init__(self, exchange: Callable[[str | None, str, str | None], Awaitable[TokenBundle]]) -> None:
        self._exchange = exchange
        self._turn = asyncio.Semaphore(SIDE_BY_SIDE)

    def routes(self) -> list[web.RouteDef]:
        """What the gate's server adds to its own."""
        return [web.post(TOKEN_PATH, self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        opid = new_opid()
        try:
            async with asyncio.timeout(REQUEST_SECONDS), self._turn:
                bundle = await self._exchange(bearer(request), opid, request.remote)
        except TimeoutError:
            return _refusal(e.UnavailableError("the exchange took too long"), opid)
        except e.KuangchaoError as error:
            return _refusal(error, opid)
        except Exception:
            log.exception("exchange failed (operation %s)", opid)
            return web.json_response(ErrorReply(error="Internal", opid=opid).wire(), status=500, headers=NO_STORE)
        return web.json_response(bundle.wire(), headers=NO_STORE)


def _refusal(error: e.KuangchaoError, opid: str) -> web.Response:
    status, body = to_reply(error, opid)
    return web.json_response(body.wire(), status=status, headers=NO_STORE)
