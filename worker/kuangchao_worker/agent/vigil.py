"""What the agent does for the authority of its pod beside its calls: hears of revocations, says when leases run out.

The feed is asked when a call was refused and now and then in any case; what it says is written down for the ranks.
Ends nothing and starts nothing.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kuangchao_contracts.errors import CapabilityError, KuangchaoError, UnavailableError
from kuangchao_contracts.names import job_resource
from kuangchao_contracts.run import Empty, FeedReply
from kuangchao_contracts.tokens import parse_strict
from kuangchao_worker.agent.client import GateClient
from kuangchao_worker.pod.revocations import Revocations, write_revocations
from kuangchao_worker.pod.tokens import TokenFile

LOOK_SECONDS: Final = 15.0
EXPIRY_SECONDS: Final = 90.0
"""Leases are renewed with more than half their life left; so near to their end something is wrong."""
log = logging.getLogger("kuangchao.vigil")


class Vigil:
    """One per agent."""

    def __init__(
        self, client: GateClient, tokens: TokenFile, run_directory: Path, clock: Callable[[], float] = time.time
    ) -> None:
        self._client, self._tokens, self._run_directory, self._clock = client, tokens, run_directory, clock
        self._written = Revocations()

    async def keep(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Once."""
        try:
            expires, identity = self._tokens.read().expires, self._tokens.identity()
        except (UnavailableError, CapabilityError):
            return  # no tokens yet: whoever waits for them says so
        warning = expiry_warning(expires, self._clock())
        if warning:
            log.warning("%s", warning)
        await self.feed(job_resource(identity.ns, identity.job))

    async def feed(self, resource: str) -> FeedReply | None:
        """What the control plane says of attempt and revocations; None when it says nothing."""
        try:
            answer = await self._client.call("interface.feed", resource, Empty(), FeedReply)
            signers = self._signers()
        except KuangchaoError as error:
            log.info("feed: %s", error)
            return None
        self._hand_over(to_ranks(answer, signers))
        return answer

    def _signers(self) -> frozenset[str]:
        """Ids of the keys that signed what the pod holds now."""
        return frozenset(str(parse_strict(token)[0]["kid"]) for token in self._tokens.read().tokens.values())

    def _hand_over(self, revoked: Revocations) -> None:
        if revoked == self._written:
            return
        try:
            write_revocations(self._run_directory, revoked)
        except OSError as error:
            log.warning("revocations cannot be handed to the ranks: %s", error.strerror)
            return
        self._written = revoked


def to_ranks(answer: FeedReply, signers: frozenset[str]) -> Revocations:
    """What ranks are told of an answer.

    That a key is denied they hear once the pod has leases by another one, together with that key: a rank that refused
    its own leases before it has new ones would end, and nobody but the rank itself takes its leases for anything.
    """
    tokens = frozenset(answer.revoked)
    if signers & set(answer.denied_kids):
        return Revocations(tokens=tokens)
    return Revocations(tokens=tokens, keys=frozenset(answer.denied_kids), jwks=answer.jwks)


def expiry_warning(expires: float, now: float) -> str | None:
    """Said before the gate refuses this pod for want of a fresh lease; None while all is well."""
    left = expires - now
    if left >= EXPIRY_SECONDS:
        return None
    if left <= 0:
        return f"leases expired {-left:.0f} s ago and were not renewed; the gate refuses this pod"
    return f"leases expire in {left:.0f} s and were not renewed; then the gate refuses this pod"
