"""Keeps the operator's key set equal to the issuer's, and tells the shell what to publish."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from kuangchao_contracts.errors import KuangchaoError
from kuangchao_contracts.keys import Jwks, KeySet
from kuangchao_operator.gate.issuer_client import IssuerClient

log = logging.getLogger(__name__)
REFRESH_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Trust:
    """All public material of the issuer."""

    jwks: Jwks
    ca_pem: str


class TrustLoop:
    """Reads JWKS and CA bundle again and again; on failure the last good set stays."""

    def __init__(
        self,
        issuer: IssuerClient,
        publish: Callable[[Trust], Awaitable[None]],
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        self._issuer, self._publish, self._refresh_seconds = issuer, publish, refresh_seconds
        self.keys = KeySet(Jwks(keys=()))
        self._jwks = Jwks(keys=())
        self._published: Trust | None = None

    def jwks(self) -> Jwks:
        """The newest JWKS known here."""
        return self._jwks

    async def refresh(self) -> None:
        """Read once, and publish when something changed. Raises what the issuer's client or `publish` raises."""
        trust = Trust(await self._issuer.jwks(), await self._issuer.ca())
        self.keys.update(trust.jwks)
        self._jwks = trust.jwks
        if trust != self._published:
            await self._publish(trust)
            self._published = trust

    async def keep(self) -> None:
        """Refresh for ever."""
        while True:
            try:
                await self.refresh()
            except KuangchaoError as error:
                log.warning("cannot refresh the issuer's keys: %s", error)
            await asyncio.sleep(self._refresh_seconds)
