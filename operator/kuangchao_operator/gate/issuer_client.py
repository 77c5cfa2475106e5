"""Client of the issuer's unix socket. Shares only requests and public material with the code that signs."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import aiohttp
from pydantic import ValidationError

from kuangchao_contracts import errors as e
from kuangchao_contracts.base import Contract
from kuangchao_contracts.keys import Jwks
from kuangchao_contracts.minting import (
    CA_PATH,
    CERTIFICATE_PATH,
    DENY_PATH,
    JWKS_PATH,
    MAX_BATCH,
    MINT_PATH,
    POLICY_PATH,
    CaBundle,
    CertificateReply,
    CertificateRequest,
    DenyRequest,
    MintBatch,
    MintedToken,
    MintReply,
    MintRequest,
    PolicyReply,
)
from kuangchao_contracts.notes import (
    AUDIT_KEYS_PATH,
    CHECKPOINT_PATH,
    AuditKeys,
    CheckpointRefusedError,
    CheckpointReply,
    CheckpointRequest,
)
from kuangchao_contracts.tokencache import ExpiringCache, digest
from kuangchao_contracts.wire import ErrorReply

TIMEOUT_SECONDS: Final = 10.0
MINTED_ENTRIES: Final = 131_072
"""Tokens that are remembered as ours by their SHA-256: those of some 6,000 pods."""
T = TypeVar("T", bound=Contract)


_REFUSALS: Final[dict[str, type[e.KuangchaoError]]] = {
    **e.refusals(),
    CheckpointRefusedError.code: CheckpointRefusedError,
}


class IssuerClient:
    """Asks the issuer. Every method raises UnavailableError when there is no answer in time."""

    def __init__(
        self, socket: Path, timeout_seconds: float = TIMEOUT_SECONDS, clock: Callable[[], float] = time.time
    ) -> None:
        self._socket, self._timeout = socket, aiohttp.ClientTimeout(total=timeout_seconds)
        self._clock, self._minted = clock, ExpiringCache[bool](MINTED_ENTRIES)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; the client may be used again."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def mint(self, requests: Sequence[MintRequest]) -> tuple[MintedToken, ...]:
        """Tokens in the order of the requests; split into batches. Raises the CapabilityError of a refusal."""
        tokens: list[MintedToken] = []
        for start in range(0, len(requests), MAX_BATCH):
            batch = MintBatch(requests=tuple(requests[start : start + MAX_BATCH]))
            tokens.extend((await self._ask("POST", MINT_PATH, MintReply, batch)).tokens)
        for minted in tokens:
            self._minted.put(digest(minted.token), True, minted.expires)
        return tuple(tokens)

    def minted(self, token: str) -> bool:
        """Whether this very token was minted here and has not expired. Costs a hash; says nothing about a call."""
        return self._minted.get(digest(token), self._clock()) is not None

    async def jwks(self) -> Jwks:
        """Public keys."""
        return await self._ask("GET", JWKS_PATH, Jwks)

    async def deny(self, kid: str) -> Jwks:
        """Have a signing key refused for good; the public keys without it."""
        return await self._ask("POST", DENY_PATH, Jwks, DenyRequest(kid=kid))

    async def policy(self) -> PolicyReply:
        """The policy in force, and why the file is not when it has a fault."""
        return await self._ask("GET", POLICY_PATH, PolicyReply)

    async def ca(self) -> str:
        """PEM of the CAs to trust."""
        return (await self._ask("GET", CA_PATH, CaBundle)).pem

    async def certificate(self, request: CertificateRequest) -> CertificateReply:
        """A certificate for a CSR."""
        return await self._ask("POST", CERTIFICATE_PATH, CertificateReply, request)

    async def audit_keys(self) -> AuditKeys:
        """Public keys for checkpoints of the audit record."""
        return await self._ask("GET", AUDIT_KEYS_PATH, AuditKeys)

    async def last_checkpoint(self, day: date) -> str | None:
        """The newest checkpoint signed for a day."""
        return (await self._ask("GET", f"{CHECKPOINT_PATH}/{day.isoformat()}", CheckpointReply)).note

    async def sign_checkpoint(self, request: CheckpointRequest) -> str:
        """A new checkpoint. Raises CheckpointRefusedError."""
        note = (await self._ask("POST", CHECKPOINT_PATH, CheckpointReply, request)).note
        if note is None:
            raise e.UnavailableError("issuer answered without a checkpoint")
        return note

    async def wait_ready(self, seconds: float) -> None:
        """Return as soon as the issuer answers. Raises UnavailableError when it does not in this time."""
        try:
            async with asyncio.timeout(seconds):
                while not await self._answers():  # noqa: ASYNC110  # another process's socket gives no event
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise e.UnavailableError(f"issuer did not answer within {seconds:g} s") from None

    async def _answers(self) -> bool:
        try:
            await self.jwks()
        except e.UnavailableError:
            return False
        return True

    async def _ask(self, method: str, path: str, answer: type[T], body: Contract | None = None) -> T:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(self._socket)), timeout=self._timeout
            )
        data = body.model_dump_json(by_alias=True, exclude_none=True).encode() if body else None
        try:
            async with self._session.request(method, f"http://issuer{path}", data=data) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise e.UnavailableError(f"issuer does not answer: {type(error).__name__}") from None
        if response.status != 200:
            raise _refusal(response.status, content)
        try:
            return answer.from_reply(content)
        except ValidationError:
            raise e.UnavailableError(f"issuer answered something else than {answer.__name__}") from None


def _refusal(status: int, content: bytes) -> e.KuangchaoError:
    try:
        reply = ErrorReply.from_reply(content)
    except ValidationError:
        return e.UnavailableError(f"issuer answered {status}")
    if reply.error == e.InvalidInputError.code:
        return e.RelayedInputError("request", "(not shown)", reply.message)
    kind = _REFUSALS.get(reply.error)
    return kind(reply.message) if kind else e.UnavailableError(f"issuer answered {status} {reply.error}")
