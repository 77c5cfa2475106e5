"""When this process last stood still: stopped, starved or blocked, or on a machine that slept or was moved.

Whatever was said meanwhile is heard only afterwards, so the newest facts are then as old as the standstill was long.
Measures; decides nothing.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from kuangchao_operator.layers.execution import limits

LOOK_SECONDS: Final = 1.0
logger = logging.getLogger(__name__)


class Hearing:
    """One for all jobs of a process. Its own duty looks, and whoever asks does: nobody is told too late."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock, self._here = clock, clock()
        self._deaf_until: datetime | None = None

    def deaf_until(self) -> datetime | None:
        """End of the newest standstill; None while there was none."""
        now = self._clock()
        away = (now - self._here).total_seconds()
        if away > limits.STANDSTILL:
            logger.warning("stood still for %.0f s: no fault is found for %g s", away, limits.AGENT_LOST)
            self._deaf_until = now
        self._here = now
        return self._deaf_until

    async def keep(self) -> None:
        """Look every second for ever."""
        while True:
            self.deaf_until()
            await asyncio.sleep(LOOK_SECONDS)
