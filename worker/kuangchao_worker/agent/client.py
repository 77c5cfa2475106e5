"""Calls the gate over HTTPS. Knows the wire and when to try again; never logs a token or a body."""

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

import aiohttp
from pydantic import ValidationError

from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import (
    AuditUnavailableError,
    CapabilityError,
    DeniedError,
    ExchangeDeniedError,
    UnavailableError,
)
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.run import ExchangeReply, ExchangeRequest
from kuangchao_contracts.wire import CALL_PATH, TOKEN_PATH, CallEnvelope, ErrorReply, TokenBundle, to_error
from kuangchao_worker.pod.tokens import TokenFile

R = TypeVar("R", bound=Contract)
T = TypeVar("T")
MAX_ANSWER: Final = 8 << 20
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 10.0
log = logging.getLogger("kuangchao.gate-client")


class GateClient:
    """One per agent. A connection that failed is made anew with the CA as it is then."""

    def __init__(
        self,
        url: str,
        tokens: TokenFile,
        ca_file: Path,
        *,
        timeout: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_refused` is told when the gate did not take a lease, which another one may mend."""
        self._url, self._tokens, self._ca_file = url, tokens, ca_file
        self._timeout = aiohttp.ClientTimeout(total=timeout, connect=min(5.0, timeout))
        self._clock, self._jitter = clock, jitter
        self._on_refused = on_refused
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "GateClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._drop_session()

    async def call(self, op: str, resource: str, request: Contract, answer: type[R]) -> R:
        """One call under the agent's lease for that layer. Raises the error that the gate answered.

        Raises UnavailableError when there is no answer.
        """
        try:
            return await self._post(self._tokens.token("agent", OPERATIONS[op].layer), op, resource, request, answer)
        except CapabilityError as error:
            if not isinstance(error, DeniedError):
                self._on_refused()
            raise

    async def exchange_account(self, account_token: str) -> TokenBundle:
        """The pod's bundle for its account token. Raises ExchangeDeniedError, or UnavailableError without an answer."""
        try:
            return await self._send(TOKEN_PATH, account_token, None, TokenBundle)
        except DeniedError:
            raise ExchangeDeniedError("the control plane gives this pod no tokens") from None

    async def one_shot(self, op: str, resource: str, request: Contract, answer: type[R]) -> R:
        """One consequential call: exchange the lease for a one-shot, then use that up."""
        wanted = ExchangeRequest(op=op, resource=resource)
        exchanged = await self.call("interface.exchange", resource, wanted, ExchangeReply)
        return await self._post(exchanged.token, op, resource, request, answer)

    async def patiently(self, attempt: Callable[[], Awaitable[T]], seconds: float) -> T:
        """Try until it works or fails for good, up to `seconds`.

        What is waited for: an outage of the control plane, and its refusal to take more from this pod just now.
        """
        deadline, pause = self._clock() + seconds, FIRST_PAUSE
        while True:
            try:
                return await attempt()
            except (UnavailableError, AuditUnavailableError) as error:
                if self._clock() + pause >= deadline:
                    raise
                log.info("waiting for the control plane: %s", error)
            # jitter: all agents of all jobs come back at once after an outage
            await asyncio.sleep(pause * (0.5 + self._jitter()))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _post(self, token: str, op: str, resource: str, request: Contract, answer: type[R]) -> R:
        return await self._send(
            f"{CALL_PATH}{op}", token, CallEnvelope(resource=resource, request=request.wire()), answer
        )

    async def _send(self, path: str, token: str, body: Contract | None, answer: type[R]) -> R:
        what = path.rsplit("/", 1)[-1]
        try:
            session = self._open_session()
            async with session.post(
                f"{self._url}{path}",
                json=body.wire() if body is not None else None,
                headers={"Authorization": f"Bearer {token}"},
                allow_redirects=False,
            ) as reply:
                status, raw = reply.status, await _whole(what, reply.content)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            await self._drop_session()
            raise UnavailableError(f"{what}: {type(error).__name__}") from None
        return _parse(what, status, raw, answer)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            context = ssl.create_default_context(cafile=str(self._ca_file)) if self._url.startswith("https:") else False
            self._session = aiohttp.ClientSession(
                timeout=self._timeout,
                connector=aiohttp.TCPConnector(ssl=context),
                trust_env=False,
            )
        return self._session

    async def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


async def _whole(what: str, content: aiohttp.StreamReader) -> bytes:
    """All of an answer; a plain read would end with the piece that has come so far."""
    raw = bytearray()
    async for piece in content.iter_any():
        raw += piece
        if len(raw) > MAX_ANSWER:
            raise UnavailableError(f"{what}: the answer has more than {MAX_ANSWER} bytes")
    return bytes(raw)


def _parse(op: str, status: int, raw: bytes, answer: type[R]) -> R:
    try:
        if status == 200:
            return answer.from_reply(raw)
        reply = ErrorReply.from_reply(raw)
    except ValidationError:
        raise UnavailableError(f"{op}: answer {status} is not ours") from None
    raise to_error(status, reply)
