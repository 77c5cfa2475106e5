"""What code of a task reports while it trains: the mean of a step, beside the loss, and read seldom."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Axis
from kuangchao_worker import report
from kuangchao_worker.layers.execution.meter import Meter
from kuangchao_worker.layers.execution.reported import MEASURED, TAKEN, Reported, read
from kuangchao_worker.reports import MAX_NAMES, REPORT_SECONDS
from kuangchao_worker.tasks.mlp import mlp
from tests.unit.worker.parts import Loop


def trained(folder: Path, says: Callable[[], None], **launch: Any) -> Loop:
    """A run whose loss also reports."""
    task = mlp({})

    def loss(module: nn.Module, batch: Any) -> torch.Tensor:
        found = task.loss(module, batch)
        says()
        return found

    loop = Loop(folder, replace(task, loss=loss), **launch)
    with report.heard_by(loop.executor.reported.note):
        loop.executor.run(None)
    return loop


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "job" / "metrics.jsonl").read_text().splitlines()]


def test_the_mean_of_a_step_stands_beside_its_loss(tmp_path: Path) -> None:
    calls = iter(range(100))

    def says() -> None:
        number = next(calls)
        report.metrics(number=torch.tensor(float(number), requires_grad=True))
        if number == 1:
            report.metrics(once=float("nan"))

    loop = trained(tmp_path, says, steps=3, accumulation=2)
    assert [line.get("metrics") for line in lines(tmp_path)] == [
        {"number": 0.5, "once": None}, {"number": 2.5}, {"number": 4.5}
    ]  # fmt: skip
    assert {"number": "4.5", "once": "nan"}.items() <= loop.executor.metrics.items()
    assert loop.executor.metrics["loss"] == f"{lines(tmp_path)[-1]['lossValue']:.10g}"


def test_who_reports_nothing_finds_nothing(tmp_path: Path) -> None:
    trained(tmp_path, lambda: None, steps=2)
    assert [set(line) for line in lines(tmp_path)] == [{"step", "attempt", "loss", "lossValue"}] * 2


@pytest.mark.parametrize(
    ("metrics", "field"),
    [
        ({"loss": 1}, "metrics"),
        ({"dataCommunicationSeconds": 1}, "metrics"),
        ({"much": "much"}, "metrics.much"),
        ({"pair": torch.ones(2)}, "metrics.pair"),
        ({"where": torch.ones((), device="meta")}, None),
    ],
)
@pytest.mark.parametrize("kept", [True, False])
def test_what_cannot_be_reported_ends_all_ranks_alike(metrics: dict[str, Any], field: str | None, kept: bool) -> None:
    reported = Reported(kept=kept)
    with report.heard_by(reported.note):
        if field is None:
            report.metrics(**metrics)
            return
        with pytest.raises(InvalidInputError) as caught:
            report.metrics(**metrics)
    assert caught.value.field == field
    assert not reported.after_step()


def test_a_piece_of_a_tensor_is_no_metric() -> None:
    """To read it takes all ranks that have one, and rank 0 alone reads."""

    class Piece(torch.Tensor):
        def full_tensor(self) -> torch.Tensor:
            raise AssertionError("never asked for")

    with pytest.raises(InvalidInputError, match="pieces"):
        Reported(kept=False).note({"weight": torch.ones(()).as_subclass(Piece)})


def test_other_ranks_keep_nothing_and_names_are_bounded() -> None:
    other, first = Reported(kept=False), Reported()
    for number in range(100):
        other.note({f"name{number}": number})
        first.note({f"name{number}": number})
    assert not other.after_step()
    assert len(first.after_step()) == len(first.texts(now=True)) == MAX_NAMES


def test_a_device_is_read_when_somebody_is_told_and_no_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    reported = Reported(clock=lambda: now)
    # on the meta device a value that is read raises, as its data would be waited for on another
    reported.note({"far": torch.ones((), device="meta"), "near": 1})
    means = reported.after_step()
    assert isinstance(means["far"], torch.Tensor) and means["near"] == 1.0
    with pytest.raises((NotImplementedError, RuntimeError)):
        read(means)
    monkeypatch.setattr("kuangchao_worker.layers.execution.reported.read", lambda found: dict.fromkeys(found, 2.0))
    assert reported.texts() == {"far": "2", "near": "2"}
    reported.note({"near": 3})
    reported.after_step()
    now += REPORT_SECONDS / 2
    monkeypatch.undo()
    assert reported.texts()["near"] == "2"
    assert reported.texts(now=True)["near"] == "3"


def test_no_name_of_a_rank_can_be_taken(tmp_path: Path) -> None:
    loop = Loop(tmp_path, mlp({}), steps=2)
    loop.executor.run(None)
    meter: Meter = loop.executor.meter
    meter.accelerator, meter.compression = lambda: 1, lambda: 2.0
    own = {*meter._look(1.0), *loop.executor.metrics, *(f"{axis.value}{MEASURED}" for axis in Axis)}
    assert {name for name in own if not name.endswith(MEASURED)} <= TAKEN
