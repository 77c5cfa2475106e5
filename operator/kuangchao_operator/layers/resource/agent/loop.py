"""The node agent's loop: look, compare, publish. It needs the API server and nothing else of ours, so it works while
the operator is down. It never edits what it has published."""

import asyncio
import random
from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from kuangchao_contracts.descriptor import NodeDescriptor
from kuangchao_contracts.errors import ConflictError, UnavailableError
from kuangchao_operator.layers.resource.agent.cluster import Cluster
from kuangchao_operator.layers.resource.debounce import Pending, observe
from kuangchao_operator.layers.resource.decide import newest, successor
from kuangchao_operator.layers.resource.driver import DeviceDriver, DriverAbsentError
from kuangchao_operator.layers.resource.model import Found
from kuangchao_operator.layers.resource.survey import survey

CHECK_SECONDS: Final = 10.0
DISCOVERY_SECONDS: Final = 30.0
RESUME_CHECKS: Final = 30
"""After so many checks the published objects are read again: somebody may have deleted them."""

log = structlog.get_logger(__name__)


class NodeAgent:
    """Publishes the descriptor of one node."""

    def __init__(self, node: str, driver: DeviceDriver, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._node, self._driver, self._cluster, self._now = node, driver, cluster, now
        self._previous: NodeDescriptor | None = None
        self._pending: Pending | None = None
        self._checks_to_resume = 0

    async def run(self, stop: asyncio.Event, interval: float = CHECK_SECONDS) -> None:
        """Check until told to stop; what fails is logged and tried again."""
        while not stop.is_set():
            try:
                await self.check()
            except (UnavailableError, ConflictError, DriverAbsentError, TimeoutError) as error:
                self._checks_to_resume = 0
                log.warning("check failed", node=self._node, kind=type(error).__name__, error=str(error))
            # spread over the interval: thousands of agents that started together must not ask together
            await _wait(stop, interval * random.uniform(0.8, 1.2))

    async def check(self) -> NodeDescriptor | None:
        """Look once; the descriptor that was published for it, or None."""
        if self._checks_to_resume == 0:
            await self._resume()
        self._checks_to_resume -= 1
        found = await self._look()
        publish, self._pending = observe(self._previous, found, self._pending)
        following = successor(self._previous, found, self._now()) if publish else None
        if following is not None:
            await self._publish(following)
        return following

    async def _resume(self) -> None:
        """Go on from what is published, so that generations rise over restarts of the agent."""
        published = await self._cluster.descriptors(self._node)
        latest = newest(published)
        self._previous = latest[0] if latest else None
        await self._collect(published)
        self._checks_to_resume = RESUME_CHECKS

    async def _look(self) -> Found:
        host, labels = await self._cluster.host(self._node)
        limits = await self._cluster.limits(labels)
        looking = asyncio.to_thread(survey, self._node, self._driver, host, limits)
        return await asyncio.wait_for(looking, DISCOVERY_SECONDS)

    async def _publish(self, descriptor: NodeDescriptor) -> None:
        """The new one first, then the old one goes: at no time is the node without a descriptor."""
        await self._cluster.publish(descriptor)
        log.info(
            "descriptor published",
            node=self._node,
            generation=descriptor.generation,
            devices=len(descriptor.devices),
            unhealthy=[d.uuid for d in descriptor.devices if not d.healthy],
        )
        old, self._previous = self._previous, descriptor
        if old is not None:
            await self._cluster.collect(self._node, old.generation)

    async def _collect(self, published: tuple[NodeDescriptor, ...]) -> None:
        latest = self._previous.generation if self._previous is not None else 0
        for descriptor in published:
            if descriptor.generation < latest:
                await self._cluster.collect(self._node, descriptor.generation)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
