"""The newest word of every agent, in memory. Rebuilt from heartbeats alone after a restart of the operator.

A heartbeat carries what its agent joined with, so the gang of an attempt is known again without anybody joining anew.
Holds facts and decides nothing.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Final

from kuangchao_contracts.run import HeartbeatRequest, JoinRequest, RankState
from kuangchao_operator.layers.execution.model import AgentFact

MAX_JOBS: Final = 10_000
"""Jobs with agents at one time; beyond that the one that was silent longest is forgotten, and learnt anew."""


class AgentRegistry:
    """Facts about agents by job uid and pod index. `on_change` is told the uid when something but a step changed."""

    def __init__(self, clock: Callable[[], datetime], on_change: Callable[[str], None]) -> None:
        self._clock, self._on_change = clock, on_change
        self._jobs: OrderedDict[str, dict[int, AgentFact]] = OrderedDict()
        self._stopped: dict[str, int] = {}
        self._arrivals: dict[str, asyncio.Event] = {}
        self._noted: dict[str, dict[int, tuple[int, int]]] = {}

    def joined(self, job_uid: str, request: JoinRequest) -> None:
        """An agent has presented itself and has no rank yet."""
        self.beat(job_uid, HeartbeatRequest(join=request, ranks=()))
        waiting = self._arrivals.pop(job_uid, None)
        if waiting is not None:
            waiting.set()

    async def arrival(self, job_uid: str, seconds: float) -> None:
        """Wait until another agent of the job joins, for so long at most."""
        event = self._arrivals.setdefault(job_uid, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    def beat(self, job_uid: str, heartbeat: HeartbeatRequest) -> None:
        """Keep a heartbeat, unless a newer incarnation or attempt of the pod has been heard already."""
        agents = self._jobs.setdefault(job_uid, {})
        self._jobs.move_to_end(job_uid)
        old = agents.get(heartbeat.join.pod_index)
        if old is not None and _age(old.heartbeat) > _age(heartbeat):
            return
        agents[heartbeat.join.pod_index] = self._fact(old, heartbeat)
        while len(self._jobs) > MAX_JOBS:
            self._noted.pop(self._jobs.popitem(last=False)[0], None)
        if old is None or _outline(old.heartbeat) != _outline(heartbeat):
            self._on_change(job_uid)

    def new_notes(self, job_uid: str, join: JoinRequest, seq: int) -> bool:
        """Whether a batch of notes was not seen before. An agent repeats a batch until it hears that it is stored."""
        noted = self._noted.setdefault(job_uid, {})
        if noted.get(join.pod_index, (0, 0)) >= (join.incarnation, seq):
            return False
        noted[join.pod_index] = (join.incarnation, seq)
        return True

    def agents(self, job_uid: str) -> tuple[AgentFact, ...]:
        """Facts of a job's agents, by pod index."""
        agents = self._jobs.get(job_uid, {})
        return tuple(agents[index] for index in sorted(agents))

    def gang(self, job_uid: str, attempt: int, incarnation: int) -> dict[int, JoinRequest]:
        """Who has joined an attempt, by pod index."""
        joins = (a.heartbeat.join for a in self._jobs.get(job_uid, {}).values())
        return {j.pod_index: j for j in joins if (j.attempt, j.incarnation) == (attempt, incarnation)}

    def stopping(self, job_uid: str, incarnation: int) -> None:
        """Pods of all incarnations up to this one are to end."""
        self._stopped[job_uid] = max(incarnation, self._stopped.get(job_uid, 0))

    def is_stopping(self, job_uid: str, incarnation: int) -> bool:
        """Whether pods of this incarnation are to end."""
        return incarnation <= self._stopped.get(job_uid, -1)

    def forget(self, job_uid: str) -> None:
        """The job holds nothing any more."""
        self._jobs.pop(job_uid, None)
        self._noted.pop(job_uid, None)
        self._stopped.pop(job_uid, None)
        self._arrivals.pop(job_uid, None)

    def _fact(self, old: AgentFact | None, heartbeat: HeartbeatRequest) -> AgentFact:
        now = self._clock()
        ended = any(r.state is RankState.EXITED for r in heartbeat.ranks)
        same = old is not None and _age(old.heartbeat) == _age(heartbeat)
        first = old.first_exit_at if old is not None and same else None
        # notes are stored already; held here they would only take room
        kept = heartbeat.model_copy(update={"notes": None})
        return AgentFact(heartbeat=kept, seen_at=now, first_exit_at=(first or now) if ended else None)


def _age(heartbeat: HeartbeatRequest) -> tuple[int, int]:
    return heartbeat.join.incarnation, heartbeat.join.attempt


def _outline(heartbeat: HeartbeatRequest) -> tuple[object, ...]:
    """All of a heartbeat that may change what is to be done at once; steps and metrics can wait for the next look."""
    return (heartbeat.join, tuple((r.rank, r.state, r.exit_code) for r in heartbeat.ranks))
