"""Pulls this pod's bundle from the gate: exchanges the projected account token for it, again at half its life.

Runs where no Secret holds the tokens. An outage of the control plane is ridden out inside the tokens' life; nothing
here ever ends the agent. Never logs a token.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

from kuangchao_contracts.errors import KuangchaoError
from kuangchao_contracts.wire import TokenBundle
from kuangchao_worker.pod.tokens import TokenFile

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 15.0
LEAST_PAUSE: Final = 2.0
"""Between two exchanges that somebody asked for: a gate that refuses every call must not be asked each time."""
JITTER: Final = 0.1
log = logging.getLogger("kuangchao.exchange")


class Gate(Protocol):
    """The part of the gate's client that is needed."""

    def exchange_account(self, account_token: str) -> Awaitable[TokenBundle]:
        """The pod's bundle. Raises KuangchaoError."""


class TokenPuller:
    """Keeps the bundle in the pod's token file fresh."""

    def __init__(
        self,
        account: Path,
        gate: Gate,
        tokens: TokenFile,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._account, self._gate, self._tokens = account, gate, tokens
        self._clock, self._chance = clock, chance
        self._asked = asyncio.Event()
        self._failures = 0

    def hurry(self) -> None:
        """A call was refused, or a new attempt has begun: what we hold may be worth nothing any more."""
        self._asked.set()

    async def keep(self) -> None:
        """Pull for ever."""
        while True:
            self._asked.clear()
            pause = await self.pull()
            if self._failures:
                # whoever asks now asks for what is being tried again already
                await asyncio.sleep(pause)
                continue
            await asyncio.sleep(min(LEAST_PAUSE, pause))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), max(0.0, pause - LEAST_PAUSE))

    async def pull(self) -> float:
        """Exchange once; seconds until the next time. Jitter: all pods of a gang start together."""
        try:
            # read each time: the kubelet renews it
            account = await asyncio.to_thread(self._account.read_text, "ascii")
            bundle = await self._gate.exchange_account(account.strip())
            await asyncio.to_thread(self._tokens.replace, bundle)
        except (KuangchaoError, OSError, ValueError) as error:
            self._failures += 1
            pause: float = min(FIRST_PAUSE * 2 ** min(self._failures - 1, 10), LONGEST_PAUSE)
            log.warning("no tokens by exchange, next try in %.0f s: %s", pause, _words(error))
            return pause
        self._failures = 0
        half = max(0.0, (bundle.expires - self._clock()) / 2)
        return max(FIRST_PAUSE, half * (1 - JITTER + 2 * JITTER * self._chance()))


def _words(error: Exception) -> str:
    """What went wrong; the text of a decoding error would quote what it could not decode."""
    return str(error) if isinstance(error, KuangchaoError | OSError) else type(error).__name__
