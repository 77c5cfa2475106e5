"""How long the operator's event loop was blocked. Measures and reports; decides nothing.

Everything in this process shares one loop: while something computes in it, no job is judged and no agent is answered.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

INTERVAL_SECONDS: Final = 0.05


async def watch_loop(
    report: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Report for ever by how much each short sleep was too long. Blocks shorter than the interval show in part."""
    while True:
        expected = clock() + INTERVAL_SECONDS
        await sleep(INTERVAL_SECONDS)
        report(max(0.0, clock() - expected))
