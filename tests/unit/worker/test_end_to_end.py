"""Agents, ranks and links as processes on loopback, against the real gate code."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from kuangchao_contracts.run import RankState
from tests.unit.worker.fakegate import Cluster, make_launch, make_plan

STEPS = 24
MLP = "kuangchao_worker.tasks.mlp:mlp"
FAULTY = "tests.unit.worker.faulty:faulty"
SAVING: dict[str, Any] = {"checkpoint_path": "job-1", "checkpoint_every_steps": 5}


def curve(folder: Path) -> dict[int, str]:
    """Loss by step in hex, the newest attempt winning."""
    lines = (folder / "checkpoints" / "job-1" / "metrics.jsonl").read_text().splitlines()
    entries = sorted((json.loads(line) for line in lines if line.endswith("}")), key=lambda e: e["attempt"])
    return {entry["step"]: entry["loss"] for entry in entries}


def mlp_launch(task: str = MLP, **args: str) -> Any:
    """Two ranks, shuffled data over several epochs, dropout, cosine schedule, two micro-batches per step."""
    plan = make_plan(2, per_pod=2, batch=32, accumulation=2)
    return make_launch(plan, task, steps=STEPS, task_args={"samples": "200", "horizon": "24", **args}, **SAVING)


def faulty_launch(tmp_path: Path, what: str, *, rank: int = 1, step: int) -> Any:
    """The fault happens in a step, once the checkpoint before it is committed."""
    saved = (step - 1) // 5 * 5
    after = tmp_path / f"committed-{saved}" if saved else tmp_path
    where = {"rank": str(rank), "call": str(2 * step - 1), "mark": str(tmp_path / "mark"), "after": str(after)}
    return mlp_launch(FAULTY, what=what, **where)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The loss curve of a run that nothing disturbs."""
    import asyncio

    folder = tmp_path_factory.mktemp("reference")

    async def run() -> None:
        async with Cluster(folder, mlp_launch()) as cluster:
            await cluster.start_agents()
            assert await cluster.finish() == [0], cluster.logs()

    asyncio.run(run())
    found = curve(folder)
    assert sorted(found) == list(range(1, STEPS + 1))
    assert len(set(found.values())) == STEPS
    return found


async def test_two_pods_train_digits(tmp_path: Path) -> None:
    launch = make_launch(make_plan(2), steps=150, checkpoint_path="job-1", checkpoint_every_steps=60)
    async with Cluster(tmp_path, launch) as cluster:
        await cluster.start_agents()
        assert await cluster.finish() == [0, 0], cluster.logs()
        control = cluster.control
        last = {beat.join.pod_index: beat for beat in control.beats}
        assert float(last[0].metrics["accuracy"]) >= 0.95
        assert all(rank.exit_code == 0 and rank.step == 150 for beat in last.values() for rank in beat.ranks)
        assert [ref.step for ref in control.ledger] == [120, 150]
        base = tmp_path / "checkpoints" / "job-1"
        assert {p.name for p in base.glob("step-*")} == {"step-120.att-1", "step-150.att-1"}, (
            "pruned, nothing left over"
        )
        assert set(control.oplog_heads) == {"0", "1"}
        assert int(control.oplog_heads["0"].split(":")[0]) >= 150
        stages = Counter(r.op for r in cluster.sink.records if r.stage == "result" and r.decision == "allow")
        assert stages["state.commit_checkpoint"] == 3
        assert not [r for r in cluster.sink.records if r.stage == "deny"]
        words = json.loads((tmp_path / "termination-1").read_text())
        assert words[0]["rank"] == 1 and words[0]["exitCode"] == 0
        for index in range(2):
            assert "eyJ" not in (tmp_path / f"agent-{index}.log").read_text()


async def test_killed_rank_resumes_on_the_same_curve(tmp_path: Path, reference: dict[int, str]) -> None:
    async with Cluster(tmp_path, faulty_launch(tmp_path, "kill", step=13), restarts=1) as cluster:
        await cluster.start_agents()
        assert await cluster.finish() == [0], cluster.logs()
        failed = [r for beat in cluster.control.beats for r in beat.ranks if r.exit_code not in (0, None)]
        assert (failed[0].rank, failed[0].exit_code, failed[0].error) == (1, -9, None)
        assert cluster.control.current == 2
    assert curve(tmp_path) == reference
    assert not [p for p in psutil.process_iter(["environ"]) if str(tmp_path) in str(p.info["environ"])]


async def test_damaged_checkpoint_is_passed_over(tmp_path: Path, reference: dict[int, str]) -> None:
    cluster = Cluster(tmp_path, faulty_launch(tmp_path, "kill", rank=0, step=13), restarts=1)

    def damage(attempt: int) -> None:
        shard = tmp_path / "checkpoints" / "job-1" / cluster.control.ledger[-1].path / "shared.pt"
        raw = bytearray(shard.read_bytes())
        raw[len(raw) // 2] ^= 1
        shard.write_bytes(raw)
        cluster.write_tokens(attempt)

    cluster.control.new_attempt = damage
    async with cluster:
        await cluster.start_agents()
        assert await cluster.finish() == [0], cluster.logs()
        assert "was changed" in cluster.logs()
        newest = cluster.control.beats[-1].metrics
        assert newest["checkpointErrors"] == "1"
    assert (tmp_path / "checkpoints" / "job-1" / "step-10.att-1.bad").is_dir()
    assert curve(tmp_path) == reference


async def test_sigterm_to_one_rank_saves_on_all(tmp_path: Path, reference: dict[int, str]) -> None:
    """A rank that left alone would hang its peers; the stop is agreed, and every rank saves the same step."""
    async with Cluster(tmp_path, faulty_launch(tmp_path, "term", step=7), restarts=1) as cluster:
        await cluster.start_agents()
        assert await cluster.finish() == [0], cluster.logs()
        drained = [r for beat in cluster.control.beats for r in beat.ranks if r.exit_code == 143]
        assert {r.step for r in drained} == {7}
        assert any(
            json.loads(line)["attempt"] == 2 and json.loads(line)["step"] == 8
            for line in (tmp_path / "checkpoints/job-1/metrics.jsonl").read_text().splitlines()
        )
    assert curve(tmp_path) == reference


async def test_user_error_is_named(tmp_path: Path) -> None:
    async with Cluster(tmp_path, faulty_launch(tmp_path, "raise", rank=0, step=2)) as cluster:
        await cluster.start_agents()
        beat = await cluster.beat_with(lambda b: any(r.rank == 0 and r.state is RankState.EXITED for r in b.ranks))
        rank = next(r for r in beat.ranks if r.rank == 0)
        assert (rank.error_kind, rank.exit_code) == ("ValueError", 1)
        assert "the user's own mistake" in (rank.error or "")
        assert "faulty.py" in (rank.error or "")
        # the other rank lost its peer, and says so instead of blaming the user
        beat = await cluster.beat_with(lambda b: all(r.state is RankState.EXITED for r in b.ranks) and b.ranks)
        assert next(r for r in beat.ranks if r.rank == 1).error_kind == "PeerLost"
        cluster.agents[0].terminate()
        assert await cluster.finish() == [1], cluster.logs()


async def test_torchrun_script_runs_unmodified(tmp_path: Path) -> None:
    launch = make_launch(
        make_plan(2, per_pod=2), None, command=("-m", "kuangchao_worker.tasks.torchrun_example", "--steps", "7")
    )
    async with Cluster(tmp_path, launch) as cluster:
        await cluster.start_agents()
        assert await cluster.finish() == [0], cluster.logs()
        last = cluster.control.beats[-1]
        assert [(r.rank, r.exit_code) for r in last.ranks] == [(0, 0), (1, 0)]
        assert last.metrics["totalSteps"] == "7"
