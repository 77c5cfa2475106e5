"""Whole jobs under plans that split the model: real agents, ranks and gate, checkpoints and a rank that is killed."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kuangchao_contracts.plan import ParallelPlan, Sharding
from kuangchao_contracts.run import LaunchSpec
from tests.local.training import SMALL, split
from tests.unit.worker.fakegate import Cluster, make_launch

STEPS = 12
TEXT = "kuangchao_worker.tasks.text:transformer"
FAULTY = "tests.unit.worker.faulty:faulty"


def launch(plan: ParallelPlan, task: str, args: dict[str, str]) -> LaunchSpec:
    fields: dict[str, Any] = {"checkpoint_path": "job-1", "checkpoint_every_steps": 4, "task_args": args}
    return make_launch(plan, task, steps=STEPS, **fields)


def run(folder: Path, spec: LaunchSpec, restarts: int = 0) -> Cluster:
    """The job to its end."""
    folder.mkdir()
    cluster = Cluster(folder, spec, restarts=restarts)

    async def main() -> None:
        async with cluster:
            await cluster.start_agents()
            assert set(await cluster.finish()) == {0}, cluster.logs()

    asyncio.run(main())
    return cluster


def curve(cluster: Cluster) -> dict[int, str]:
    """Loss by step in hex, the newest attempt winning."""
    lines = (cluster.folder / "checkpoints" / "job-1" / "metrics.jsonl").read_text().splitlines()
    entries = sorted(map(json.loads, lines), key=lambda entry: entry["attempt"])
    return {entry["step"]: entry["loss"] for entry in entries}


def held_out_loss(cluster: Cluster) -> float:
    """What rank 0 measured at the end."""
    return next(float(b.metrics["testLoss"]) for b in cluster.control.beats if "testLoss" in b.metrics)


def test_a_sharded_job_goes_on_after_a_killed_rank_with_the_bits_of_data_parallel(tmp_path: Path) -> None:
    args = {"samples": "200", "dropout": "0.2"}
    calm = run(tmp_path / "calm", launch(split(data=2, per_pod=2, pods=1), "kuangchao_worker.tasks.mlp:mlp", args))
    plan = split(data=2, per_pod=2, pods=1, sharding=Sharding.FULL)
    faults = {"folder": str(tmp_path / "sharded"), "faults": "kill:1:7:4", **args}
    sharded = run(tmp_path / "sharded", launch(plan, FAULTY, faults), restarts=1)
    assert sharded.control.ledger[-1].attempt == 2
    assert sorted(curve(sharded)) == list(range(1, STEPS + 1))
    assert curve(sharded) == curve(calm)
    newest = tmp_path / "sharded" / "checkpoints" / "job-1" / sharded.control.ledger[-1].path
    assert {path.name for path in newest.glob("*.pt")} == {
        f"{kind}-{rank}.pt" for kind in ("rank", "shard", "layout") for rank in (0, 1)
    }


def test_a_job_over_two_pods_trains_as_one_process_does(tmp_path: Path) -> None:
    plan = split(per_pod=2, pods=2, tensor=2, pipeline=2, accumulation=2, sequence=True)
    alone = run(tmp_path / "alone", launch(split(), TEXT, SMALL))
    both = run(tmp_path / "split", launch(plan, TEXT, SMALL))
    found, expected = ([float.fromhex(loss) for loss in curve(c).values()] for c in (both, alone))
    assert len(found) == STEPS
    assert found == pytest.approx(expected, rel=1e-4)
    assert held_out_loss(both) == pytest.approx(held_out_loss(alone), rel=1e-4)
    assert [ref.step for ref in both.control.ledger] == [8, 12]
    links = [beat.metrics for beat in both.control.beats if "linkLatencySeconds" in beat.metrics]
    assert links and links[-1]["worstLink"] == "pods 0-1"
    assert not any("linkLoss" in beat.metrics for beat in alone.control.beats), "a pod alone has no link"
