"""Agents, ranks and links as processes on loopback, against the real gate code."""

import asyncio
import json
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from kuangchao_contracts.run import HeartbeatRequest, RankReport
from tests.unit.worker.fakegate import PATIENCE, Cluster, make_launch, make_plan

STEPS = 24
SAVING: dict[str, Any] = {"checkpoint_path": "job-1", "checkpoint_every_steps": 5}
# what, rank, micro-batch of the attempt (two per step), checkpoint that must be committed before
FAULTS = "term:1:13:5,kill:1:11:10,kill:0:11:15,raise:0:21:20"


@dataclass
class Run:
    """What is left of a job."""

    folder: Path
    beats: list[HeartbeatRequest]
    logs: str

    def curve(self) -> dict[int, str]:
        """Loss by step in hex, the newest attempt winning."""
        return {e["step"]: e["loss"] for e in sorted(self.entries(), key=lambda e: e["attempt"])}

    def entries(self) -> list[dict[str, Any]]:
        lines = (self.folder / "checkpoints" / "job-1" / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def ended(self, attempt: int, rank: int) -> RankReport:
        """How a rank ended in an attempt."""
        found = [r for b in self.beats if b.join.attempt == attempt for r in b.ranks if r.rank == rank]
        return next(r for r in found if r.exit_code is not None)


def mlp_launch(name: str, **args: str) -> Any:
    """Two ranks, shuffled data over several epochs, dropout, cosine schedule, two micro-batches per step."""
    plan = make_plan(2, per_pod=2, batch=32, accumulation=2)
    return make_launch(plan, name, steps=STEPS, task_args={"samples": "200", "horizon": "24", **args}, **SAVING)


def run_job(cluster: Cluster) -> Run:
    async def run() -> None:
        async with cluster:
            await cluster.start_agents()
            assert await cluster.finish() == [0], cluster.logs()

    asyncio.run(run())
    return Run(cluster.folder, cluster.control.beats, cluster.logs())


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing disturbs."""
    return run_job(Cluster(tmp_path_factory.mktemp("calm"), mlp_launch("kuangchao_worker.tasks.mlp:mlp")))


@pytest.fixture(scope="module")
def stormy(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same job with a fault in each of four attempts; before the fourth its newest checkpoint is damaged."""
    folder = tmp_path_factory.mktemp("stormy")
    launch = mlp_launch("tests.unit.worker.faulty:faulty", folder=str(folder), faults=FAULTS)
    cluster = Cluster(folder, launch, restarts=4, own_forges=True)

    def damage(attempt: int) -> None:
        if attempt == 4:
            shard = folder / "checkpoints" / "job-1" / cluster.control.ledger[-1].path / "shared.pt"
            raw = bytearray(shard.read_bytes())
            raw[len(raw) // 2] ^= 1
            shard.write_bytes(raw)
        cluster.write_tokens(attempt)

    cluster.control.new_attempt = damage
    return run_job(cluster)


def test_curve_is_bit_equal_after_any_fault(calm: Run, stormy: Run) -> None:
    assert sorted(calm.curve()) == list(range(1, STEPS + 1))
    assert len(set(calm.curve().values())) == STEPS
    assert stormy.curve() == calm.curve()
    assert {entry["attempt"] for entry in stormy.entries()} == {1, 2, 3, 4, 5}


def test_sigterm_to_one_rank_saves_the_same_step_on_all(stormy: Run) -> None:
    """A rank that left alone would hang its peers."""
    ended = [r for b in stormy.beats if b.join.attempt == 1 for r in b.ranks if r.exit_code is not None]
    assert ended
    assert {(r.exit_code, r.step) for r in ended} == {(143, 7)}
    assert min(e["step"] for e in stormy.entries() if e["attempt"] == 2) == 8


def test_killed_rank_is_not_blamed_on_the_user(stormy: Run) -> None:
    assert (stormy.ended(2, 1).exit_code, stormy.ended(2, 1).error) == (-9, None)
    assert stormy.ended(3, 0).exit_code == -9


def test_damaged_checkpoint_is_passed_over_and_kept_for_people(stormy: Run) -> None:
    base = stormy.folder / "checkpoints" / "job-1"
    damaged = [p.name for p in base.glob("*.bad")]
    assert damaged == ["step-15.att-3.bad"]
    assert min(e["step"] for e in stormy.entries() if e["attempt"] == 4) == 11
    assert any(b.metrics.get("checkpointErrors") == "1" for b in stormy.beats if b.join.attempt == 4)


def test_user_error_is_named_and_placed(stormy: Run) -> None:
    report = stormy.ended(4, 0)
    assert (report.error_kind, report.exit_code) == ("ValueError", 1)
    assert "the user's own mistake" in (report.error or "")
    assert "faulty.py" in (report.error or "")
    # restored at 10, two micro-batches a step: the 21st call is in the step after the 20th
    assert report.step == 20


def test_nothing_is_left_behind(stormy: Run) -> None:
    assert not [p for p in psutil.process_iter(["environ"]) if str(stormy.folder) in str(p.info["environ"])]
    assert not list(stormy.folder.rglob("*.sock"))
    names = {p.name for p in (stormy.folder / "checkpoints" / "job-1").glob("step-*") if p.suffix != ".bad"}
    assert len(names) == 2 and "step-24.att-5" in names, "pruned, and nothing unfinished"


async def test_two_pods_train_digits_through_an_outage(tmp_path: Path) -> None:
    launch = make_launch(make_plan(2, batch=64), steps=300, checkpoint_path="job-1", checkpoint_every_steps=120)
    async with Cluster(tmp_path, launch) as cluster:
        await cluster.start_agents()
        await cluster.beat_with(lambda beat: any(rank.section != "init" for rank in beat.ranks))
        await cluster.be_unreachable(refusals=4)
        assert await cluster.finish() == [0, 0], cluster.logs()
        check_digits(cluster)


def check_digits(cluster: Cluster) -> None:
    folder, control = cluster.folder, cluster.control
    last = {beat.join.pod_index: beat for beat in control.beats}
    assert float(last[0].metrics["accuracy"]) >= 0.95
    assert all(rank.exit_code == 0 and rank.step == 300 for beat in last.values() for rank in beat.ranks)
    assert [ref.step for ref in control.ledger] == [240, 300]
    names = {p.name for p in (folder / "checkpoints" / "job-1").glob("step-*")}
    assert names == {"step-240.att-1", "step-300.att-1"}, "pruned, and nothing unfinished"
    assert set(control.oplog_heads) == {"0", "1"}
    assert int(control.oplog_heads["0"].split(":")[0]) >= 300
    done = Counter(r.op for r in cluster.sink.records if r.stage == "result" and r.decision == "allow")
    assert done["state.commit_checkpoint"] == 3
    assert not [r for r in cluster.sink.records if r.stage == "deny"]
    words = json.loads((folder / "termination-1").read_text())
    assert (words[0]["rank"], words[0]["exitCode"]) == (1, 0)
    assert "eyJ" not in cluster.logs()


async def test_pod_that_leaves_does_not_join_the_next_attempt(tmp_path: Path) -> None:
    """It would wait there for peers until the kubelet kills it, and the gang for it all the while."""
    async with Cluster(tmp_path, make_launch(make_plan(2, batch=64), steps=1_000_000)) as cluster:
        for index in range(2):
            await cluster.start_agent({**cluster.environment(index), "KUANGCHAO_GRACE_SECONDS": "3600"})
        await cluster.beat_with(lambda beat: any(rank.section == "train" for rank in beat.ranks))
        cluster.agents[1].send_signal(signal.SIGTERM)
        cluster.control.advance()
        assert await asyncio.wait_for(cluster.agents[1].wait(), PATIENCE) != 0, cluster.logs()


async def test_torchrun_script_runs_unmodified(tmp_path: Path) -> None:
    command = ("-m", "kuangchao_worker.tasks.torchrun_example", "--steps", "7")
    launch = make_launch(make_plan(2, per_pod=2), None, command=command)
    async with Cluster(tmp_path, launch) as cluster:
        await cluster.start_agents()
        assert await cluster.finish() == [0], cluster.logs()
        last = cluster.control.beats[-1]
        assert [(r.rank, r.exit_code, r.step) for r in last.ranks] == [(0, 0, 7), (1, 0, 7)]
        assert [r.total_steps for r in last.ranks] == [7, 7]
