"""Keys that nobody knows: the operator asks the issuer again, soon but seldom, however many are made up."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.keys import Jwks
from kuangchao_contracts.tokens import TokenVerifier
from kuangchao_operator.gate.trust import TrustLoop
from tests.unit.authority.kit import ISSUER, Clock, Signer

AUDIENCE = "kc:state"


class CountingIssuer:
    """Says which keys there are; `asked` rises with every question."""

    def __init__(self, jwks: Jwks) -> None:
        self.current, self.asked = jwks, 0
        self._changed = asyncio.Condition()

    async def jwks(self) -> Jwks:
        async with self._changed:
            self.asked += 1
            self._changed.notify_all()
        return self.current

    async def ca(self) -> str:
        return ""

    async def audit_keys(self) -> None:
        """Not of interest here."""

    async def was_asked(self, times: int) -> None:
        async with asyncio.timeout(100), self._changed:
            await self._changed.wait_for(lambda: self.asked >= times)
        for _ in range(10):  # whatever follows of itself
            await asyncio.sleep(0)


class Part:
    """The loop, and a verifier that uses its keys."""

    def __init__(self) -> None:
        self.signer = Signer(Clock())
        self.issuer = CountingIssuer(Jwks(keys=(self.signer.public,)))
        client: Any = self.issuer
        self.loop = TrustLoop(client, self._publish, refresh_seconds=3_600)
        self.verifier = TokenVerifier(self.loop.keys, ISSUER, self.signer.clock)

    async def _publish(self, _: Any) -> None:
        pass

    def refused(self, number: int) -> None:
        token = self.signer.token(header=self.signer.header(kid=f"{number:043d}"))
        with pytest.raises(e.UnknownKeyError):
            self.verifier.verify(token, AUDIENCE)


@pytest.fixture
async def part() -> AsyncIterator[Part]:
    part = Part()
    task = asyncio.create_task(part.loop.keep())
    await part.issuer.was_asked(1)
    yield part
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_thousand_unknown_keys_are_one_question(part: Part) -> None:
    for number in range(1_000):
        part.refused(number)
        await asyncio.sleep(0)
    await part.issuer.was_asked(2)
    assert part.issuer.asked == 2
    part.signer.clock.now += 10
    part.refused(0)
    await part.issuer.was_asked(3)
    part.refused(1)
    for _ in range(10):
        await asyncio.sleep(0)
    assert part.issuer.asked == 3


async def test_a_key_that_has_become_known_is_good_after_one_refusal(part: Part) -> None:
    new = Signer(part.signer.clock)
    part.issuer.current = Jwks(keys=(part.signer.public, new.public))
    with pytest.raises(e.UnknownKeyError):
        part.verifier.verify(new.token(), AUDIENCE)
    await part.issuer.was_asked(2)
    assert part.verifier.verify(new.token(), AUDIENCE)


async def test_known_keys_ask_for_nothing(part: Part) -> None:
    for _ in range(100):
        part.verifier.verify(part.signer.token(), AUDIENCE)
    for _ in range(10):
        await asyncio.sleep(0)
    assert part.issuer.asked == 1
