"""Strategy's side of its port: hands requests to the pure planner and its answers back.

A search is arithmetic that may take a second, so it runs beside the event loop, one at a time; equal requests, as a
batch of equal jobs makes them, are answered from what was planned before. The answer is that of the planner, always.
"""

import asyncio
from collections import OrderedDict
from typing import Final

from kuangchao_contracts.capability import Capability
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import PlanOutcome, PlanRequest
from kuangchao_contracts.ports.strategy import ReplanRequest, StrategyControl
from kuangchao_operator.layers.strategy.shipped import Planner

REMEMBERED: Final = 256
"""Answers that are kept; one of a plan for 16,384 ranks has some 30 KB."""


class StrategyService(StrategyControl):
    """Plans in a thread, so that nobody waits for a search but who asked for it."""

    def __init__(self, planner: Planner | None = None) -> None:
        """`planner`: with whose figures; those of this release if it is left out."""
        self._planner = planner or Planner()
        self._answers = OrderedDict[PlanRequest, PlanOutcome]()
        self._turn = asyncio.Semaphore(1)

    async def plan(self, capability: Capability, request: PlanRequest) -> PlanOutcome:  # noqa: ARG002 - the port's shape
        """The plan, or why there is none; what is known already waits for no search."""
        found = self._remembered(request)
        if found is not None:
            return found
        async with self._turn:
            # whoever had the turn before may have asked the same
            found = self._remembered(request)
            return await self._search(request) if found is None else found

    def _remembered(self, request: PlanRequest) -> PlanOutcome | None:
        found = self._answers.get(request)
        if found is not None:
            self._answers.move_to_end(request)
        return found

    async def _search(self, request: PlanRequest) -> PlanOutcome:
        found = await asyncio.to_thread(self._planner.plan, request)
        self._answers[request] = found
        if len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        return found

    async def replan(self, capability: Capability, request: ReplanRequest) -> PlanOutcome:  # noqa: ARG002
        """A plan that needs less than the one that did not fit. Raises InvalidInputError without a measured peak."""
        if request.request.measured_peak_bytes is None:
            raise InvalidInputError("request.measuredPeakBytes", None, "a plan is replaced on a measured peak only")
        async with self._turn:
            return await asyncio.to_thread(self._planner.replan, request.previous, request.request)
