"""Agents, ranks and links as processes on loopback, against the real gate code."""

from pathlib import Path

from tests.unit.worker.fakegate import Cluster, make_launch, make_plan


async def test_two_pods_train_digits(tmp_path: Path) -> None:
    launch = make_launch(make_plan(2), steps=150, checkpoint_path="job-1", checkpoint_every_steps=50)
    async with Cluster(tmp_path, launch) as cluster:
        await cluster.start_agents()
        assert await cluster.finish() == [0, 0], cluster.logs()
        assert float(cluster.control.beats[-1].metrics.get("accuracy", "0")) >= 0, cluster.logs()
        print(cluster.logs(), cluster.control.beats[-1], cluster.control.ledger)
