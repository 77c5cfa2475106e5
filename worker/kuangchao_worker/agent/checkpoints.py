"""Checkpoints as the agent of pod 0 handles them: claim the directory, choose what to restore, seal, commit, prune.

A checkpoint counts only once it is in the ledger. Nothing here may end training: what fails is counted and reported.
Never writes into a finished checkpoint and never touches another job's directory.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final

from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.errors import (
    CheckpointCorruptError,
    KuangchaoError,
    UnavailableError,
)
from kuangchao_contracts.names import job_resource
from kuangchao_contracts.run import CommitReply, CommitRequest, LaunchSpec, RestorePointReply, RestorePointRequest
from kuangchao_worker.agent import volume
from kuangchao_worker.agent.client import GateClient
from kuangchao_worker.pod.shards import ShardsDone, parse_name

SHARDS_SECONDS: Final = 1_800.0
COMMIT_SECONDS: Final = 3_600.0
POLL_SECONDS: Final = 0.05
SLOWEST_POLL: Final = 1.0
LATE_SECONDS: Final = 10.0
"""For parts of a checkpoint after a newer one is complete. Ranks write one after the other: they are there already or
never will be, apart from how late a shared volume shows them."""
log = logging.getLogger("kuangchao.checkpoints")


class CheckpointKeeper:
    """Keeps the checkpoints of one attempt."""

    def __init__(self, client: GateClient, launch: LaunchSpec, attempt: int, base: Path) -> None:
        self._client, self._launch, self._attempt, self._base = client, launch, attempt, base
        self._resource = job_resource(launch.namespace, launch.job)
        self._pending: dict[Path, asyncio.Task[None]] = {}
        self._failed: set[Path] = set()
        self._deadlines: dict[Path, float] = {}
        self._one_at_a_time = asyncio.Lock()
        self.metrics: dict[str, str] = {}
        self._errors = 0

    async def prepare(self, newest: CheckpointRef | None) -> CheckpointRef | None:
        """Claim the directory, clear what earlier attempts left unfinished, and choose what to restore.

        Raises CheckpointPathInUseError, CheckpointCorruptError and UnavailableError.
        """
        try:
            await asyncio.to_thread(volume.claim, self._base, self._launch)
            await asyncio.to_thread(volume.sweep, self._base, self._attempt)
        except OSError as error:
            # full or read-only: training can go on without new checkpoints, and restoring only reads
            self._problem(f"{self._base.name}: {error.strerror}")
        return await self._choose(newest)

    async def _choose(self, candidate: CheckpointRef | None) -> CheckpointRef | None:
        damaged: list[str] = []
        while candidate is not None:
            problem = await asyncio.to_thread(volume.verify, self._base, candidate)
            if problem is None:
                return candidate
            log.error("checkpoint %s is damaged: %s", candidate.path, problem)
            damaged.append(candidate.digest)
            self._problem(f"{candidate.path}: {problem}")
            await asyncio.to_thread(volume.quarantine, self._base, candidate)
            candidate = await self._older(tuple(damaged))
        if damaged:
            raise CheckpointCorruptError(
                f"all {len(damaged)} committed checkpoints are damaged; see *.bad in the directory"
            )
        return None

    async def _older(self, damaged: tuple[str, ...]) -> CheckpointRef | None:
        request = RestorePointRequest(attempt=self._attempt, damaged=damaged)
        reply = await self._client.patiently(
            lambda: self._client.call("state.restore_point", self._resource, request, RestorePointReply), COMMIT_SECONDS
        )
        return reply.checkpoint

    def saved(self, directory: Path) -> None:
        """A rank of this pod has written its part; the others' parts are waited for."""
        if directory.parent != self._base or directory in self._failed or directory in self._pending:
            return
        self._pending[directory] = asyncio.create_task(self._finish(directory), name=f"commit {directory.name}")

    def failed(self, directory: Path, problem: str) -> None:
        """A rank of this pod could not write its part, so this checkpoint will never be complete."""
        self._problem(problem)
        if directory.parent != self._base or directory in self._failed:
            return
        self._failed.add(directory)
        task = self._pending.pop(directory, None)
        if task is not None:
            task.cancel()
        volume.remove(directory)

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is still on its way into the ledger."""
        return any(not task.done() for task in self._pending.values())

    async def close(self) -> None:
        """Give up what is not committed."""
        tasks = list(self._pending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _finish(self, working: Path) -> None:
        try:
            shards = await self._collect(working)
            await self._older_first(working)
            async with self._one_at_a_time:
                await self._commit(working, shards)
        except (KuangchaoError, OSError) as error:
            self._problem(f"{working.name}: {error}")
            log.warning("checkpoint %s is given up: %s", working.name, error)
            await asyncio.to_thread(volume.remove, working)

    async def _collect(self, working: Path) -> list[ShardsDone]:
        """Parts of all ranks, also those of other pods, which share the volume but not this process."""
        started, pause = asyncio.get_running_loop().time(), POLL_SECONDS
        self._deadlines.setdefault(working, started + SHARDS_SECONDS)
        while True:
            late = (now := asyncio.get_running_loop().time()) >= self._deadlines[working]
            found = await asyncio.to_thread(volume.read_done, working, self._launch.plan.world_size)
            if not isinstance(found, str):
                return found
            if late:
                raise UnavailableError(f"not complete within {now - started:.0f} s: {found}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, SLOWEST_POLL)

    async def _older_first(self, working: Path) -> None:
        """Wait for those of earlier steps, which the ledger does not take any more once it has this one."""
        older = {path: task for path, task in self._pending.items() if not task.done() and _step(path) < _step(working)}
        late = asyncio.get_running_loop().time() + LATE_SECONDS
        for path in older:
            self._deadlines[path] = min(late, self._deadlines.get(path, late))
        if older:
            await asyncio.wait(older.values())

    async def _commit(self, working: Path, shards: list[ShardsDone]) -> None:
        named = parse_name(working.name)
        if named is None:
            raise UnavailableError(f"{working.name} is no checkpoint")
        manifest = volume.manifest(self._launch, named[0], self._attempt, shards)
        finished = await asyncio.to_thread(volume.seal, working, manifest)
        request = CommitRequest(path=finished.name, manifest=manifest)
        try:
            reply = await self._client.patiently(
                lambda: self._client.one_shot("state.commit_checkpoint", self._resource, request, CommitReply),
                COMMIT_SECONDS,
            )
        except UnavailableError:
            # no answer: it may be in the ledger, so it stays
            raise
        except KuangchaoError:
            # refused, so not in the ledger: back to a name that is cleared away
            await asyncio.to_thread(finished.rename, working)
            raise
        self.metrics["checkpointStep"] = str(named[0])
        for path in reply.prune:
            await asyncio.to_thread(volume.prune, self._base, path)

    def _problem(self, text: str) -> None:
        self._errors += 1
        self.metrics |= {"checkpointErrors": str(self._errors), "checkpointError": text[:64]}


def _step(directory: Path) -> int:
    named = parse_name(directory.name)
    return named[0] if named is not None else 0
