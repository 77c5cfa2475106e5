"""Two committers of neighbouring attempts, interleaved at every step: the ledger always ends with the later one's.

The store is simulated at the level of compare-and-swap: between reading a job, deciding and writing it anybody else
may have written. Every interleaving is tried, not a sample.
"""

from collections.abc import Coroutine, Iterator
from itertools import combinations
from typing import Any

import pytest

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.errors import ConflictError, StaleEpochError
from kuangchao_contracts.run import CommitReply
from kuangchao_operator.facts.store import JobStore, Mutation
from kuangchao_operator.layers.state.ledger import restore_point
from kuangchao_operator.layers.state.service import StateService
from tests.unit.execution.test_service import capability
from tests.unit.execution.world import START, UID
from tests.unit.state.test_ledger import make, request


class Point:
    """A place at which another committer may be let on."""

    def __await__(self) -> Iterator[None]:
        yield


class SwapStore(JobStore):
    """Optimistic writes as the API server takes them: a version that has changed meanwhile is read and tried again."""

    def __init__(self, job: TrainingJob) -> None:
        self.job, self.version = job, 0

    async def get(self, namespace: str, name: str) -> TrainingJob | None:
        await Point()
        return self.job

    async def update_status(self, namespace: str, name: str, uid: str, mutate: Mutation) -> TrainingJob:
        while True:
            await Point()
            job, version = self.job, self.version
            await Point()
            status = mutate(job)
            await Point()
            if version == self.version:
                self.job, self.version = job.model_copy(update={"status": status}), version + 1
                return self.job


def commit(store: SwapStore, attempt: int, step: int) -> Coroutine[Any, Any, CommitReply]:
    holder = capability("state.commit_checkpoint", sub="agent:team/job/p", ns="team", job="job", juid=UID, att=attempt)
    return StateService(store, lambda: START).commit_checkpoint(holder, request(step, attempt))


async def advance(store: SwapStore) -> None:
    """What the loop of the job does before anything of the old attempt is removed."""
    await store.update_status(
        "team",
        "job",
        UID,
        lambda job: job.status.replace(attempt=job.status.attempt + 1),  # type: ignore[union-attr]
    )


async def restart(store: SwapStore) -> CommitReply:
    """The next attempt begins, saves the same step, and commits."""
    await advance(store)
    return await commit(store, 2, 10)


class Actor:
    """A coroutine that is let on one point at a time."""

    def __init__(self, work: Coroutine[Any, Any, CommitReply]) -> None:
        self._work = work
        self.over = False
        self.answer: CommitReply | None = None
        self.error: Exception | None = None

    def step(self) -> None:
        """On to the next point."""
        try:
            self._work.send(None)
        except StopIteration as end:
            self.over, self.answer = True, end.value
        except (StaleEpochError, ConflictError) as error:
            self.over, self.error = True, error

    def finish(self) -> None:
        """To the end."""
        while not self.over:
            self.step()


OLD, NEW = 7, 9
"""Points of the two, retries included; more turns than an actor has points let it finish early."""


def schedules() -> Iterator[tuple[bool, ...]]:
    """Every order in which the old committer's turns can lie among the new one's."""
    for places in combinations(range(OLD + NEW), OLD):
        yield tuple(turn in places for turn in range(OLD + NEW))


def test_the_later_attempt_has_the_last_word_whatever_the_order() -> None:
    outcomes = set()
    for schedule in schedules():
        store = SwapStore(make(attempt=1))
        old, new = Actor(commit(store, 1, 10)), Actor(restart(store))
        for of_old in schedule:
            actor = old if of_old else new
            if not actor.over:
                actor.step()
        new.finish()
        old.finish()
        assert new.error is None and new.answer is not None, schedule
        status = store.job.status
        assert status is not None
        newest = restore_point(status)
        assert newest is not None
        assert (newest.attempt, newest.path, newest.digest) == (2, "step-10.att-2", new.answer.committed.digest), (
            schedule
        )
        entered = any(entry.attempt == 1 for entry in status.checkpoints)
        assert entered is (old.error is None), "what was refused is not in the ledger, and what was answered is"
        outcomes.add(type(old.error))
    assert outcomes == {type(None), StaleEpochError}, "both ends are reached: before the fence rose, and after"


@pytest.mark.parametrize("turns", range(1, 4))
def test_a_zombie_that_was_stopped_within_its_commit_is_refused_when_it_wakes(turns: int) -> None:
    """Stopped after it was let in, woken when the next attempt has gone on: judged at the write, not at the door."""
    store = SwapStore(make(attempt=1))
    old = Actor(commit(store, 1, 10))
    for _ in range(turns):
        old.step()
    new = Actor(restart(store))
    new.finish()
    later = Actor(commit(store, 2, 20))
    later.finish()
    old.finish()
    assert isinstance(old.error, StaleEpochError)
    status = store.job.status
    assert status is not None
    assert [entry.attempt for entry in status.checkpoints] == [2, 2]
