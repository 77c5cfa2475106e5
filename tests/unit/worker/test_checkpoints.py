"""Checkpoints on their way into the ledger, as the agent of pod 0 handles them; the control plane is a stand-in."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.errors import CheckpointCorruptError, KuangchaoError, StaleEpochError, UnavailableError
from kuangchao_contracts.run import CommitReply, RestorePointReply
from kuangchao_worker.agent import checkpoints, volume
from kuangchao_worker.agent.checkpoints import CheckpointKeeper
from kuangchao_worker.agent.client import GateClient
from kuangchao_worker.pod.shards import ShardsDone, done_name, file_digest, finished_name, working_name
from tests.unit.worker.fakegate import make_launch, make_plan

LAUNCH = make_launch(make_plan(2), checkpoint_path="job")


class Ledger:
    """Answers commits with what it is given: an error, or the paths that are to be pruned."""

    def __init__(self, *answers: KuangchaoError | tuple[str, ...]) -> None:
        self.answers = list(answers)
        self.committed: list[str] = []
        self.older: list[CheckpointRef | None] = []
        self.damaged: list[tuple[str, ...]] = []

    async def patiently(self, attempt: Callable[[], Awaitable[Any]], seconds: float) -> Any:
        return await attempt()

    async def one_shot(self, op: str, resource: str, request: Any, answer: type[CommitReply]) -> CommitReply:
        found = self.answers.pop(0) if self.answers else ()
        if isinstance(found, KuangchaoError):
            raise found
        self.committed.append(request.path)
        manifest = request.manifest
        ref = CheckpointRef(step=manifest.step, attempt=1, path=request.path, digest=manifest.content_hash())
        return CommitReply(committed=ref, prune=found)

    async def call(self, op: str, resource: str, request: Any, answer: type[RestorePointReply]) -> RestorePointReply:
        self.damaged.append(request.damaged)
        return RestorePointReply(checkpoint=self.older.pop(0))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    (folder / "oplog").mkdir(parents=True)
    return folder


def keeper(base: Path, ledger: Ledger) -> CheckpointKeeper:
    return CheckpointKeeper(cast("GateClient", ledger), LAUNCH, 1, base)


def written(base: Path, step: int, ranks: int = 2) -> Path:
    """The directory in which the first ranks have finished their parts."""
    working = base / working_name(step, 1)
    working.mkdir(exist_ok=True)
    for rank in range(ranks):
        (working / f"rank-{rank}.pt").write_bytes(bytes([rank]) * 10)
        done = ShardsDone(rank=rank, files=(file_digest(working, f"rank-{rank}.pt"),), torch_version="2")
        (working / done_name(rank)).write_bytes(done.canonical())
    return working


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def settled(kept: CheckpointKeeper) -> None:
    await until(lambda: not kept.busy)


def names(base: Path) -> list[str]:
    return sorted(path.name for path in base.glob("step-*"))


async def test_a_checkpoint_is_committed_once_all_parts_are_there_and_what_it_replaces_goes(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []
    found = volume.read_done
    monkeypatch.setattr(volume, "read_done", lambda working, world: looks.append(working) or found(working, world))
    ledger = Ledger((), (finished_name(5, 1),))
    kept = keeper(base, ledger)
    kept.saved(written(base, 5))
    await settled(kept)
    kept.saved(written(base, 10, ranks=1))
    await until(lambda: len(looks) > 2)
    assert (kept.busy, ledger.committed) == (True, [finished_name(5, 1)]), "rank 1 has not finished writing"
    kept.saved(written(base, 10))
    await settled(kept)
    assert ledger.committed == [finished_name(5, 1), finished_name(10, 1)]
    assert names(base) == [finished_name(10, 1)]
    assert kept.metrics == {"checkpointStep": "10"}


@pytest.mark.parametrize(
    ("answer", "left"), [(StaleEpochError("late"), []), (UnavailableError("no answer"), [finished_name(5, 1)])]
)
async def test_what_is_not_in_the_ledger_goes_and_what_may_be_stays(
    base: Path, answer: KuangchaoError, left: list[str]
) -> None:
    kept = keeper(base, Ledger(answer))
    kept.saved(written(base, 5))
    await settled(kept)
    assert names(base) == left
    assert (kept.metrics["checkpointErrors"], "checkpointStep" in kept.metrics) == ("1", False)


async def test_a_part_that_could_not_be_written_gives_up_its_checkpoint_and_no_other(base: Path) -> None:
    ledger = Ledger()
    kept = keeper(base, ledger)
    working = written(base, 5, ranks=1)
    kept.saved(working)
    kept.failed(working, "OSError: No space left on device")
    kept.failed(working, "OSError: No space left on device")
    kept.saved(written(base, 5))
    kept.saved(written(base, 10))
    await settled(kept)
    assert ledger.committed == [finished_name(10, 1)]
    assert (kept.metrics["checkpointErrors"], kept.metrics["checkpointError"][:7]) == ("2", "OSError")


@pytest.mark.parametrize("comes", [True, False], ids=["late", "never"])
async def test_steps_come_into_the_ledger_in_their_order_however_late_their_parts_are_seen(
    base: Path, monkeypatch: pytest.MonkeyPatch, *, comes: bool
) -> None:
    """A newer one is complete by the first look, while the older one waits for its next."""
    monkeypatch.setattr(checkpoints, "LATE_SECONDS", 60.0 if comes else 0.0)
    looks: list[Path] = []
    found = volume.read_done
    monkeypatch.setattr(volume, "read_done", lambda working, world: looks.append(working) or found(working, world))
    ledger = Ledger()
    kept = keeper(base, ledger)
    kept.saved(written(base, 9, ranks=1))
    await until(lambda: bool(looks))
    kept.saved(written(base, 10))
    await until(lambda: base / working_name(10, 1) in looks)
    if comes:
        written(base, 9)
    await settled(kept)
    assert ledger.committed == [*([finished_name(9, 1)] if comes else []), finished_name(10, 1)]
    assert kept.metrics.get("checkpointErrors", "0") == ("0" if comes else "1")


async def test_directories_of_others_are_not_touched(base: Path, tmp_path: Path) -> None:
    ledger, other = Ledger(), tmp_path / "other"
    other.mkdir()
    kept = keeper(base, ledger)
    working = written(other, 5)
    kept.saved(working)
    kept.failed(working, "OSError")
    assert (kept.busy, ledger.committed, names(other)) == (False, [], [working.name])


async def test_a_damaged_checkpoint_is_put_aside_for_the_one_before_it(base: Path) -> None:
    ledger = Ledger()
    kept = keeper(base, ledger)
    refs = []
    for step in (5, 10):
        kept.saved(written(base, step))
        await settled(kept)
        manifest = file_digest(base / finished_name(step, 1), "manifest.json")
        refs.append(CheckpointRef(step=step, attempt=1, path=finished_name(step, 1), digest=manifest.sha256))
    older, newest = refs
    (base / newest.path / "rank-1.pt").write_bytes(b"\2" * 10)
    ledger.older = [older]
    assert await kept.prepare(newest) == older
    assert ledger.damaged == [(newest.digest,)]
    assert names(base) == [f"{newest.path}.bad", older.path]
    (base / older.path / "rank-0.pt").unlink()
    ledger.older = [None]
    with pytest.raises(CheckpointCorruptError, match="all 1 committed checkpoints are damaged"):
        await kept.prepare(older)
