"""A pod that was stopped within its commit and wakes when the next attempt has gone on: it changes nothing that counts.

Gate, agents and ranks are the real ones; only who decides to begin the next attempt is a test.
"""

import asyncio
import hashlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil

from kuangchao_contracts.base import Contract
from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_worker.agent import volume
from tests.unit.worker.fakegate import PATIENCE, Cluster, make_launch, make_plan

RANK = "kuangchao_worker.rank"


class Held(Cluster):
    """Holds the first commit of attempt 1 between its arrival at the gate and its judgement."""

    def __init__(self, folder: Path) -> None:
        launch = make_launch(
            make_plan(1), "kuangchao_worker.tasks.mlp:mlp", steps=20, checkpoint_path="job-1", checkpoint_every_steps=5
        )
        super().__init__(folder, launch)
        self.arrived, self.release, self.judged = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._through = self._gate.call_wire
        self._gate.call_wire = self._hold  # type: ignore[method-assign]  # a fault point in front of the gate

    async def _hold(self, token: str | None, op: str, resource: str, body: Any, opid: str) -> Contract:
        if op != "state.commit_checkpoint" or body["manifest"]["attempt"] != 1:
            return await self._through(token, op, resource, body, opid)
        self.arrived.set()
        await self.release.wait()
        try:
            return await self._through(token, op, resource, body, opid)
        finally:
            self.judged.set()

    def pod(self, name: str, incarnation: int) -> dict[str, str]:
        """A pod with directories of its own on the volume that all share."""
        # the first one's ranks are found below its agent, where its own forge is
        forge = {} if incarnation else {"KUANGCHAO_SHARED_FORGE": ""}
        return {
            **self.environment(0),
            "KUANGCHAO_RUN_DIR": str(self.folder / f"run-{name}"),
            "KUANGCHAO_TOKEN_DIR": str(self.folder / name),
            "KUANGCHAO_TERMINATION_LOG": str(self.folder / f"termination-{name}"),
            "KUANGCHAO_INCARNATION": str(incarnation),
            **forge,
        }

    async def mount(self, name: str, incarnation: int) -> int:
        """Start a pod with the tokens of now, which on a node that is cut off nobody renews; its process id."""
        shutil.copytree(self.folder / "t0", self.folder / name)
        await self.start_agent(self.pod(name, incarnation))
        return self.agents[-1].pid


def tree(pid: int) -> list[psutil.Process]:
    """An agent and all below it."""
    agent = psutil.Process(pid)
    return [agent, *agent.children(recursive=True)]


def signal_all(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        os.kill(process.pid, number)


async def test_a_stopped_pod_commits_nothing_when_it_wakes(tmp_path: Path) -> None:
    async with Held(tmp_path) as cluster:
        zombie = await cluster.mount("first", 0)
        await asyncio.wait_for(cluster.arrived.wait(), PATIENCE)
        stopped = tree(zombie)
        signal_all(stopped, signal.SIGSTOP)
        cluster.control.advance()
        await cluster.mount("second", 1)
        assert await asyncio.wait_for(cluster.agents[1].wait(), PATIENCE) == 0, cluster.logs()
        committed = list(cluster.control.ledger)
        cluster.release.set()
        await asyncio.wait_for(cluster.judged.wait(), PATIENCE)
        ranks = [process for process in stopped if RANK in " ".join(process.cmdline())]
        assert ranks, "a rank was stopped with its agent"
        signal_all(stopped, signal.SIGCONT)
        _, alive = await asyncio.to_thread(psutil.wait_procs, ranks, PATIENCE)
        assert not alive, "an agent that learns that it is late ends its ranks"
        check(cluster, committed)


def check(cluster: Held, committed: list[CheckpointRef]) -> None:
    commits = [r for r in cluster.sink.records if r.op == "state.commit_checkpoint" and r.decision == "deny"]
    assert [(r.reason, r.attempt) for r in commits] == [("StaleEpoch", 1)]
    assert cluster.control.ledger == committed
    newest = committed[-1]
    assert (newest.step, newest.attempt) == (20, 2)
    base = cluster.folder / "checkpoints" / "job-1"
    assert volume.verify(base, newest) is None, "what a restore reads is byte for byte the new attempt's"
    assert hashlib.sha256((base / newest.path / "manifest.json").read_bytes()).hexdigest() == newest.digest
