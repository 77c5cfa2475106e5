"""A run that goes on from an earlier one: what it takes along, and from which runs nobody can go on."""

import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.trainingjob import TrainingJobStatus
from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_operator.local.earlier import earlier_run
from kuangchao_operator.local.job import admit

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STORED = {"storage": {"claimName": "c"}}


def job(name: str = "j", **spec: Any) -> TrainingJob:
    wanted = {"pool": "any", "task": "m:f", "devices": {"count": 2}, "checkpoint": STORED, **spec}
    body = {key: value for key, value in wanted.items() if value is not None}
    return TrainingJob.model_validate({"metadata": {"name": name}, "spec": body})


def ran(root: Path, wish: TrainingJob, *paths: str) -> TrainingJob:
    """A run in `root` that has kept these checkpoints."""
    stored, _ = admit(wish, NOW)
    kept = tuple(
        CheckpointRef(step=number, attempt=1, path=path, digest="0" * 64) for number, path in enumerate(paths, 1)
    )
    stored = stored.replace(status=TrainingJobStatus(attempt=2, incarnation=1, restarts=3, checkpoints=kept))
    (root / "audit").mkdir(parents=True)
    (root / "audit" / "writer.lock").touch()
    (root / "status.json").write_text(stored.model_dump_json(by_alias=True))
    own = root / "checkpoints" / names.checkpoint_directory(wish.metadata.name, stored.metadata.uid or "")
    for path in (*paths, "step-9.att-1", "oplog"):
        (own / path).mkdir(parents=True)
        (own / path / "file").write_text(path)
    (own / "metrics.jsonl").write_text("{}\n")
    return stored


def test_it_is_the_same_job_with_its_next_attempt_and_what_its_ledger_names(tmp_path: Path) -> None:
    before = ran(tmp_path / "run", job(), "step-1.att-1", "step-2.att-1")
    earlier = earlier_run(tmp_path / "run", job(devices={"count": 4}))
    onward, _ = admit(job(devices={"count": 4}), NOW, earlier)
    assert onward.metadata.uid == before.metadata.uid
    assert onward.spec.devices.count == 4, "the wish is that of now"
    assert onward.status is not None
    assert before.status is not None
    fresh = TrainingJobStatus(attempt=3, incarnation=2, checkpoints=before.status.checkpoints)
    assert onward.status == fresh, "a budget of its own"
    earlier.bring(tmp_path / "volume")
    own = tmp_path / "volume" / earlier.files.name
    assert {path.name for path in own.iterdir()} == {"step-1.att-1", "step-2.att-1", "metrics.jsonl"}
    assert (own / "step-2.att-1" / "file").samefile(earlier.files / "step-2.att-1" / "file")
    assert not (own / "metrics.jsonl").samefile(earlier.files / "metrics.jsonl"), "that one is written on"


def test_a_script_finds_its_files(tmp_path: Path) -> None:
    script = job(task=None, command=["train.py"])
    ran(tmp_path / "run", script)
    earlier = earlier_run(tmp_path / "run", script)
    (earlier.files / "last.pt").write_text("weights")
    earlier.bring(tmp_path / "volume")
    assert not (tmp_path / "volume" / earlier.files.name / "last.pt").samefile(earlier.files / "last.pt")


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (job("other"), r"metadata\.name='other': is not that of --resume .*; nearest legal value: j"),
        (job(task="m:g"), r"spec\.task='m:g': is not that of --resume .*; nearest legal value: m:f"),
        (job(checkpoint={"storage": {"claimName": "c", "path": "p"}}), r"spec\.checkpoint\.storage=.*'c'"),
    ],
)
def test_another_job(tmp_path: Path, wish: TrainingJob, words: str) -> None:
    ran(tmp_path / "run", job(), "step-1.att-1")
    with pytest.raises(InvalidInputError, match=words):
        earlier_run(tmp_path / "run", wish)


def test_nothing_to_go_on_from(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"--resume=.*: is no directory of a run; nearest legal value: .*runs/"):
        earlier_run(tmp_path, job())
    ran(tmp_path / "bare", job(checkpoint={}))
    with pytest.raises(InvalidInputError, match=r"has kept no checkpoint: its job has no spec\.checkpoint\.storage"):
        earlier_run(tmp_path / "bare", job(checkpoint={}))
    ran(tmp_path / "young", job())
    with pytest.raises(InvalidInputError, match=r"has kept no checkpoint$"):
        earlier_run(tmp_path / "young", job())


def test_a_run_that_still_goes_on(tmp_path: Path) -> None:
    ran(tmp_path / "run", job(), "step-1.att-1")
    holder = os.open(tmp_path / "run" / "audit" / "writer.lock", os.O_RDWR)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(InvalidInputError, match="is still running; end it with Ctrl-C first"):
            earlier_run(tmp_path / "run", job())
    finally:
        os.close(holder)
    assert earlier_run(tmp_path / "run", job())


def test_files_that_are_gone(tmp_path: Path) -> None:
    ran(tmp_path / "run", job(), "step-1.att-1")
    earlier = earlier_run(tmp_path / "run", job())
    (earlier.files / "step-1.att-1" / "file").unlink()
    (earlier.files / "step-1.att-1").rmdir()
    with pytest.raises(InvalidInputError, match=r"its checkpoints cannot be read: .*step-1\.att-1"):
        earlier.bring(tmp_path / "volume")
