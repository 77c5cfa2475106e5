"""Keeps the operator's key set equal to the issuer's, and tells the shell what to publish: keys, CA and policy."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from kuangchao_contracts.errors import KuangchaoError
from kuangchao_contracts.keys import Jwks, KeySet
from kuangchao_contracts.notes import AuditKeys
from kuangchao_contracts.policy import Policy, PolicyBook
from kuangchao_operator.gate.issuer_client import IssuerClient

log = logging.getLogger(__name__)
REFRESH_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Trust:
    """All public material of the issuer, and the policy that this process follows."""

    jwks: Jwks
    ca_pem: str
    policy: Policy
    audit: AuditKeys


class TrustLoop:
    """Reads JWKS and CA bundle again and again; on failure the last good set stays.

    A token by a key that is not known makes it read at once, though never more often than its key set allows.
    """

    def __init__(
        self,
        issuer: IssuerClient,
        publish: Callable[[Trust], Awaitable[None]],
        refresh_seconds: float = REFRESH_SECONDS,
        policies: PolicyBook | None = None,
    ) -> None:
        self._issuer, self._publish, self._refresh_seconds = issuer, publish, refresh_seconds
        self._policies = policies or PolicyBook()
        self._wake = asyncio.Event()
        self.keys = KeySet(Jwks(keys=()), self._wake.set)
        self._jwks = Jwks(keys=())
        self._denied: tuple[str, ...] = ()
        self._published: Trust | None = None
        self._one_at_a_time = asyncio.Lock()

    def jwks(self) -> Jwks:
        """The newest JWKS known here."""
        return self._jwks

    async def refresh(self) -> None:
        """Read once, and publish when something changed. Raises what the issuer's client or `publish` raises.

        Published is one after the other: else what was read earlier could be written over what came later.
        """
        self._trust(await self._issuer.jwks())
        async with self._one_at_a_time:
            trust = Trust(self._jwks, await self._issuer.ca(), self._policies.current, await self._issuer.audit_keys())
            if trust != self._published:
                await self._publish(trust)
                self._published = trust

    async def deny(self, kid: str) -> None:
        """Refuse what a key signed: here at once, everywhere as soon as the issuer has answered and it is published.

        Raises UnavailableError when the issuer does not answer. The refusal here stands all the same.
        """
        self._denied = (*(known for known in self._denied if known != kid), kid)
        self._trust(self._jwks)
        self._trust(await self._issuer.deny(kid))
        await self.refresh()

    def _trust(self, jwks: Jwks) -> None:
        """Trust these keys less the denied ones, of which an issuer that was away may not know yet."""
        self._jwks = jwks.denying(self._denied)
        self.keys.update(self._jwks)

    async def keep(self) -> None:
        """Refresh for ever."""
        while True:
            self._wake.clear()
            try:
                await self.refresh()
            except KuangchaoError as error:
                log.warning("cannot refresh the issuer's keys: %s", error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._refresh_seconds)
