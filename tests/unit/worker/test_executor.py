"""The training loop: it learns, saves by the policy, ends when asked, and shows user code nothing of the plan."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kuangchao_contracts.errors import ConflictError, DirectCommunicationError
from kuangchao_contracts.ports.execution import ContextView
from kuangchao_worker.layers.execution.executor import Outcome
from kuangchao_worker.layers.execution.metrics import LossLog
from kuangchao_worker.tasks.digits import digits
from kuangchao_worker.tasks.mlp import mlp
from tests.unit.worker.fakegate import UID
from tests.unit.worker.parts import Loop, curve


def test_digits_learn_and_are_measured(tmp_path: Path) -> None:
    loop = Loop(tmp_path, digits({}), steps=300, batch=64)
    assert loop.executor.run(None) is Outcome.FINISHED
    assert float(loop.executor.metrics["accuracy"]) >= 0.95
    assert loop.executor.metrics["loss"]
    view = loop.context.view()
    assert isinstance(view, ContextView)
    assert (view.step, view.samples, view.epoch, view.section) == (300, 19_200, 13, "finished")
    assert loop.calls[-1] == "save:300", "the last state is saved too"


def test_checkpoints_follow_the_policy(tmp_path: Path) -> None:
    loop = Loop(tmp_path, mlp({}), steps=10, checkpoint_every_steps=4)
    loop.executor.run(None)
    assert [c for c in loop.calls if c.startswith("save")] == ["save:4", "save:8", "save:10"]
    timed = Loop(tmp_path, mlp({}), steps=6, checkpoint_every_seconds=30)
    ticks = iter(range(0, 10_000, 10))
    timed.executor.clock = lambda: float(next(ticks))
    timed.executor.run(None)
    saves = [int(c.split(":")[1]) for c in timed.calls if c.startswith("save")]
    assert saves[:-1] and saves[-1] == 6 and len(saves) < 6


def test_stop_saves_the_step_and_ends(tmp_path: Path) -> None:
    loop = Loop(tmp_path, mlp({}), steps=10, stop_at=3)
    assert loop.executor.run(None) is Outcome.DRAINED
    assert loop.calls[-2:] == ["submit_gradients:3", "save:3"]
    late = Loop(tmp_path, mlp({}), steps=10, stop_at=10)
    assert late.executor.run(None) is Outcome.FINISHED, "there was nothing left to do"


def test_accumulated_micro_batches_equal_one_batch(tmp_path: Path) -> None:
    curves = []
    for accumulation in (1, 4):
        folder = tmp_path / str(accumulation)
        folder.mkdir()
        Loop(folder, mlp({"dropout": "0"}), steps=8, accumulation=accumulation).executor.run(None)
        curves.append([float.fromhex(v) for v in curve(folder).values()])
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)


def test_curve_survives_a_torn_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "attempt": 1, "loss": "0x1p0"}\n{"step": 2, "att')
    log = LossLog(path, 2)
    log.add(2, 0.5)
    log.flush()
    lines = path.read_text().splitlines()
    assert json.loads(lines[-1]) == {"step": 2, "attempt": 2, "loss": (0.5).hex(), "lossValue": 0.5}
    assert sum(line.endswith("}") for line in lines) == 2
    lost = LossLog(tmp_path / "no" / "metrics.jsonl", 1)
    for step in (1, 2):
        lost.add(step, 0.5)
        lost.flush()
    assert caplog.messages == ["the loss curve is not written: metrics.jsonl: No such file or directory"]


def test_curve_on_a_volume_that_fills_up_within_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real, room = tmp_path / "metrics.jsonl", os.write, [100, 1_000]

    def write(descriptor: int, data: bytes) -> int:
        if not room[0]:
            room.pop(0)
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(descriptor, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)
    log = LossLog(path, 1)
    for step in (1, 2, 3):
        log.add(step, 0.5)
        log.flush()
    lines = path.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines if line.endswith("}")] == [1, 3]
    assert len(lines) == 3, "the line that was torn, by itself"


def test_a_loss_that_is_no_number_is_none_in_json(tmp_path: Path) -> None:
    """With losses that are scaled for fp16 it is part of training."""
    log = LossLog(tmp_path / "metrics.jsonl", 1)
    log.add(1, float("nan"))
    log.flush()
    line = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in line
    assert json.loads(line)["lossValue"] is None
    assert json.loads(line)["loss"] == "nan"


def test_user_code_sees_a_module_and_a_batch_only(tmp_path: Path) -> None:
    seen: list[tuple[Any, ...]] = []
    task = mlp({})

    def loss(*given: Any) -> torch.Tensor:
        seen.append(given)
        return task.loss(*given)

    Loop(tmp_path, replace(task, loss=loss), steps=1).executor.run(None)
    module, batch = seen[0]
    assert isinstance(module, nn.Module)
    assert all(isinstance(tensor, torch.Tensor) for tensor in batch)
    assert UID not in repr(seen)


def test_a_plan_that_was_changed_in_memory_ends_the_run(tmp_path: Path) -> None:
    loop = Loop(tmp_path, mlp({}), steps=250)

    def report(step: int, *_: Any) -> None:
        if step == 120:
            loop.assigned.launch.plan.__dict__["tensor"] = 2

    loop.executor.report = report
    with pytest.raises(ConflictError, match="step 200: the plan is now"):
        loop.executor.run(None)


@pytest.mark.parametrize("when", ["last step", "evaluation"])
def test_what_was_refused_when_no_step_follows_ends_the_run_too(tmp_path: Path, when: str) -> None:
    """Code that caught the error in the last update, or while it measured."""
    refused: list[str] = []

    def guard() -> None:
        if refused:
            raise DirectCommunicationError("mytask called torch.distributed.barrier")

    def evaluate(_: nn.Module) -> dict[str, float]:
        refused.append("in the evaluation")
        return {}

    loop = Loop(tmp_path, replace(mlp({}), evaluate=evaluate if when == "evaluation" else None), steps=3)
    loop.executor.guard = guard
    if when == "last step":
        loop.executor.report = lambda step, *_: refused.append("in the update") if step == 3 else None
    with pytest.raises(DirectCommunicationError):
        loop.executor.run(None)
    assert ("save:3" in loop.calls) == (when == "evaluation"), "nothing is saved after it"
