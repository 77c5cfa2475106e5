"""What the operator publishes of the issuer: the newest has the last word, whoever asked for it and when."""

import asyncio
from typing import Any

from kuangchao_contracts.keys import Jwks
from kuangchao_operator.gate.trust import Trust, TrustLoop
from tests.unit.authority.kit import Clock, Signer


class Issuer:
    """Has one key; nothing else is of interest."""

    def __init__(self) -> None:
        self.current = Jwks(keys=(Signer(Clock()).public,))

    async def jwks(self) -> Jwks:
        return self.current

    async def ca(self) -> str:
        return ""

    async def audit_keys(self) -> None:
        """Not of interest here."""


async def test_what_was_read_earlier_is_not_written_over_what_came_later() -> None:
    """A policy that changes, a key that is denied and the usual look may meet; an API server may be slow."""
    issuer, begun, slow, written = Issuer(), asyncio.Event(), asyncio.Event(), list[Jwks]()

    async def publish(trust: Trust) -> None:
        if not begun.is_set():
            begun.set()
            await slow.wait()
        written.append(trust.jwks)

    client: Any = issuer
    loop = TrustLoop(client, publish)
    first = asyncio.create_task(loop.refresh())
    await begun.wait()
    old, issuer.current = issuer.current, Jwks(keys=(Signer(Clock()).public,))
    second = asyncio.create_task(loop.refresh())
    while loop.jwks() == old:
        await asyncio.sleep(0)  # the new keys are trusted here at once
    slow.set()
    await asyncio.gather(first, second)
    assert written == [old, issuer.current]
    await loop.refresh()
    assert len(written) == 2, "nothing has changed since"
