"""What the agent does for the authority of its pod beside its calls: hears of revocations, says when leases run out.

The feed is asked when a call was refused and now and then in any case; what it says is written down for the ranks.
Ends nothing and starts nothing.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from kuangchao_contracts.errors import CapabilityError, KuangchaoError, UnavailableError
from kuangchao_contracts.names import job_resource
from kuangchao_contracts.run import Empty, FeedReply
from kuangchao_contracts.tokens import parse_strict
from kuangchao_contracts.wire import TokenBundle
from kuangchao_worker.agent.client import GateClient
from kuangchao_worker.pod.revocations import Revocations, write_revocations
from kuangchao_worker.pod.tokens import TokenFile

LOOK_SECONDS: Final = 15.0
EXPIRY_SECONDS: Final = 90.0
"""Leases are renewed with more than half their life left; so near to their end something is wrong."""
log = logging.getLogger("kuangchao.vigil")


@dataclass(frozen=True, slots=True)
class Held:
    """Ids of the tokens that the pod holds now, and of the keys that signed them."""

    tokens: frozenset[str]
    keys: frozenset[str]

    @classmethod
    def of(cls, bundle: TokenBundle) -> Self:
        """Those of a bundle. Raises CapabilityError when it holds what is no token."""
        parsed = [parse_strict(token) for token in bundle.tokens.values()]
        return cls(
            frozenset(str(payload.get("jti")) for _, payload in parsed),
            frozenset(str(head["kid"]) for head, _ in parsed),
        )

    def any_of(self, answer: FeedReply) -> bool:
        """Whether some of it was taken back."""
        return not (self.tokens.isdisjoint(answer.revoked) and self.keys.isdisjoint(answer.denied_kids))


class Vigil:
    """One per agent."""

    def __init__(
        self,
        client: GateClient,
        tokens: TokenFile,
        run_directory: Path,
        renew: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`renew` is told that something the pod holds was taken back."""
        self._client, self._tokens, self._run_directory, self._clock = client, tokens, run_directory, clock
        self._renew = renew
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
            held = Held.of(self._tokens.read())
        except KuangchaoError as error:
            log.info("feed: %s", error)
            return None
        if held.any_of(answer):
            self._renew()
        self._hand_over(to_ranks(answer, held))
        return answer

    def _hand_over(self, revoked: Revocations) -> None:
        if revoked == self._written:
            return
        try:
            write_revocations(self._run_directory, revoked)
        except OSError as error:
            log.warning("revocations cannot be handed to the ranks: %s", error.strerror)
            return
        self._written = revoked


def to_ranks(answer: FeedReply, held: Held) -> Revocations:
    """What ranks are told of an answer.

    Of tokens that the pod still holds, and of the keys that signed those, they hear once it holds others: a rank that
    refused its own leases before it has new ones would end, and nobody but the rank itself takes them for anything.
    """
    tokens = frozenset(answer.revoked) - held.tokens
    if not held.keys.isdisjoint(answer.denied_kids):
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
