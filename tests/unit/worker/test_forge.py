"""Forges from the process that agents of a machine share: each its own, gone with its agent, and missed if killed."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from kuangchao_worker.agent.forge import Forge, ForgedStore
from tests.forge import shared_forge

SECONDS = 120


async def store(forge: Forge) -> ForgedStore:
    """The store of an attempt."""
    return await forge.store(1, dict(os.environ))


def maker(store: ForgedStore) -> psutil.Process:
    """The forge that it was forked from."""
    found = psutil.Process(store.pid).parent()
    assert found is not None
    return found


async def gone(*processes: psutil.Process) -> None:
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, SECONDS)
    assert not alive


async def test_each_agent_has_a_forge_of_its_own_which_ends_with_it() -> None:
    first, second = Forge({}, shared_forge()), Forge({}, shared_forge())
    stores = [await store(first), await store(second)]
    forges, served = [maker(made) for made in stores], [psutil.Process(made.pid) for made in stores]
    assert forges[0] != forges[1]
    assert forges[0].parent() == forges[1].parent(), "one process has imported what both need"
    first.close()
    await gone(forges[0], served[0])
    assert forges[1].is_running() and served[1].is_running(), "the other agent's are not touched"
    second.close()
    await gone(forges[1])


async def test_what_a_killed_forge_had_forked_is_told_as_ended() -> None:
    """It is no child of the agent, to which no signal of its end comes."""
    forge, told = Forge({}, shared_forge()), asyncio.Queue[tuple[int, int]]()
    made = await store(forge)
    forge.on_end = lambda pid, code: told.put_nowait((pid, code))
    maker(made).send_signal(signal.SIGKILL)
    assert await asyncio.wait_for(told.get(), SECONDS) == (made.pid, -signal.SIGKILL)
    assert not forge.alive
    forge.close()


async def test_where_nobody_shares_one_it_is_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = set(psutil.Process().children())
    forge = Forge(dict(os.environ), tmp_path / "absent")
    assert "no shared forge" in caplog.text
    (own,) = set(psutil.Process().children()) - before
    assert own.is_running()
    forge.close()
    await gone(own)


async def test_those_that_have_ended_are_told_together() -> None:
    """Whoever heard of one alone would take its end for the first."""
    forge, loop = Forge({}, shared_forge()), asyncio.get_running_loop()
    killed: list[int] = []
    known: list[int] = []

    def hear(pid: int, _code: int) -> None:
        killed.append(pid)
        loop.call_soon(lambda: known.append(len(killed)))

    forge.on_end = hear
    try:
        served = [psutil.Process((await store(forge)).pid) for _ in range(2)]
        parent = served[0].parent()
        assert parent is not None
        parent.suspend()
        while parent.status() != psutil.STATUS_STOPPED:
            await asyncio.sleep(0.01)
        for process in reversed(served):
            process.kill()
        while any(process.status() != psutil.STATUS_ZOMBIE or _threads(process) > 1 for process in served):
            await asyncio.sleep(0.01)
        parent.resume()
        async with asyncio.timeout(SECONDS):
            while not known:
                await asyncio.sleep(0.01)
        assert (sorted(killed), known[0]) == (sorted(process.pid for process in served), 2)
    finally:
        forge.close()


def _threads(process: psutil.Process) -> int:
    """A process has not ended before all of them have, whatever it is called by then."""
    return len(list(Path(f"/proc/{process.pid}/task").iterdir()))
