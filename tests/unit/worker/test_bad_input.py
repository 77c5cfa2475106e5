"""Tasks that are not what they say: each ends in an error that names what is wrong, on which rank and at which step.

Ranks that disagree with each other are in `tests/local/test_planted.py` and `test_links.py`.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Precision
from kuangchao_worker.layers.execution.executor import Outcome
from kuangchao_worker.pod.channel import MAX_MESSAGE, RankMessage
from kuangchao_worker.rank.failure import describe, kind_of, layer_of
from kuangchao_worker.rank.stages import loss_of, on_model
from kuangchao_worker.tasks import load_task
from kuangchao_worker.tasks.mlp import mlp
from tests.unit.worker.parts import Loop, curve

AT = 3
MLP = mlp({"dropout": "0", "samples": "40"})


class Lines(Dataset[Any]):
    """40 samples, or so it says. Cannot be pickled."""

    def __init__(self, there: int = 40, length: int = 40) -> None:
        self._there, self._length, self._hook = there, length, lambda: None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        if index >= self._there:
            raise IndexError(f"no line {self._there}")
        return MLP.dataset[index]


class Endless(Dataset[Any]):
    """Does not say how many there are."""

    def __getitem__(self, index: int) -> Any:
        return MLP.dataset[index]


def from_step(value: Any) -> Any:
    """A loss that is multiplied from step `AT` on."""
    calls = 0

    def loss(module: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return MLP.loss(module, batch) * (value if calls >= AT else 1)

    return loss


def each(module: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(module(batch[0]), batch[1], reduction="none")


def test_a_pipelines_loss_is_computed_from_what_the_last_stage_gives() -> None:
    output, batch = torch.ones(2, 3, requires_grad=True) * 2, MLP.dataset[:2]
    with pytest.raises(InvalidInputError, match=r"task\.loss=\S+: has no gradient"):
        loss_of(replace(MLP, loss=lambda *given: module_of(*given).mean().detach()), output, batch)
    assert loss_of(replace(MLP, loss=lambda *given: module_of(*given).mean()), output, batch).item() == 2


def test_a_loss_that_leads_to_no_weight_is_refused_before_ranks_wait_for_its_gradients() -> None:
    module, own = MLP.model(), torch.ones((), requires_grad=True)
    given = MLP.dataset[:2]

    def recomputed() -> torch.Tensor:
        # the graph shows the input alone, which only makes torch's checkpoint give a gradient
        first = given[0].requires_grad_()
        return checkpoint(module, first, use_reentrant=True).mean()  # type: ignore[no-any-return]

    assert on_model(MLP.loss(module, given)) > 0
    assert on_model(recomputed()).numel() == 1
    for lost in (own * 2, given[0].sum() * own, own.exp() + module(given[0]).mean().detach()):
        with pytest.raises(
            InvalidInputError, match=r"task\.loss=\S+: has a gradient that leads to nothing of the model"
        ):
            on_model(lost)
    output = module(given[0])
    assert loss_of(replace(MLP, loss=lambda *pair: module_of(*pair).mean() + own), output, given).numel() == 1
    with pytest.raises(InvalidInputError, match="leads to nothing of the model"):
        loss_of(replace(MLP, loss=lambda *pair: module_of(*pair).mean().detach() * own), output, given)


def module_of(module: nn.Module, batch: Any) -> torch.Tensor:
    return module(batch[0])  # type: ignore[no-any-return]


def narrow(module: nn.Module, batch: Any) -> torch.Tensor:
    return MLP.loss(module, (batch[0][:, :-1], batch[1]))


BAD: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "a loss that is no number": (
        {"loss": from_step(float("nan"))}, "execution", "NonFiniteLoss", "rank 0, step 3: the loss is nan",
    ),
    "a loss without limit": (
        {"loss": from_step(float("inf"))}, "execution", "NonFiniteLoss", "rank 0, step 3: the loss is inf",
    ),
    "a loss per sample": (
        {"loss": each}, "algorithm", "InvalidSpec", r"task\.loss=\(16, 1\): is not a tensor of one element",
    ),
    "a loss that is a float": (
        {"loss": lambda *_: 0.5}, "algorithm", "InvalidSpec", r"task\.loss='float': is not a tensor",
    ),
    "a loss with an imaginary part": (
        {"loss": lambda *given: MLP.loss(*given) * 1j}, "algorithm", "InvalidSpec", r"task\.loss=\S+: is no real",
    ),
    "a loss of no model": (
        {"loss": lambda *_: torch.tensor(0.5)}, "algorithm", "InvalidSpec", r"task\.loss=0\.5: has no gradient; near",
    ),
    "a loss that is cut off": (
        {"loss": lambda *given: MLP.loss(*given).detach().requires_grad_()},
        "algorithm", "InvalidSpec", "has no gradient",
    ),
    "inputs of another width": (
        {"loss": narrow}, "algorithm", "RuntimeError", r"mat1 and mat2 shapes cannot be multiplied \(16x15",
    ),
    "data that ends early": (
        {"dataset": Lines(30)}, "execution", "DatasetEnded", "rank 0: sample 3. of a dataset of 40: no line 30",
    ),
    "data of less than nothing": (
        {"dataset": Lines(length=-1)}, "execution", "InvalidSpec", r"task\.dataset='Lines': has no length: __len__",
    ),
    "data without a length": (
        {"dataset": Endless()}, "execution", "InvalidSpec", r"task\.dataset='Endless': has no length: object of",
    ),
}  # fmt: skip
"""What is wrong, whose turn it is when that is found, the kind of error, and its words."""


@pytest.mark.parametrize(("changes", "layer", "kind", "words"), BAD.values(), ids=BAD)
def test_a_task_that_is_not_what_it_says(
    tmp_path: Path, changes: dict[str, Any], layer: str, kind: str, words: str
) -> None:
    with pytest.raises(Exception, match=words) as found:
        Loop(tmp_path, replace(MLP, **changes), steps=6).executor.run(None)
    assert kind_of(found.value) == kind
    assert re.search(words, describe(found.value)), "what people are told"
    assert layer_of(found.value) == layer
    assert f"({layer}, at " in describe(found.value)


def test_data_need_not_be_picklable(tmp_path: Path) -> None:
    loop = Loop(tmp_path, replace(MLP, dataset=Lines()), steps=6)
    assert loop.executor.run(None) is Outcome.FINISHED


def test_a_step_without_a_loss_changes_no_weight(tmp_path: Path) -> None:
    loop = Loop(tmp_path, replace(MLP, loss=from_step(float("nan"))), steps=6, checkpoint_every_steps=1)
    with pytest.raises(Exception, match="the loss is nan"):
        loop.executor.run(None)
    assert loop.calls[-1] == f"save:{AT - 1}", "nothing was submitted after the last good step"
    assert len(curve_of(loop, tmp_path)) == AT - 1


def curve_of(loop: Loop, folder: Path) -> dict[int, str]:
    loop.executor.log.flush()
    return curve(folder)


def test_with_scaled_gradients_a_loss_may_overflow(tmp_path: Path) -> None:
    """That is how the scale is found; the step is left out by whoever scales."""
    loop = Loop(tmp_path, replace(MLP, loss=from_step(float("inf"))), steps=6)
    spec = loop.executor.assignment.launch
    training = spec.training.replace(precision=Precision.FP16)
    loop.executor.assignment = loop.assigned.replace(launch=spec.replace(training=training))
    loop.executor._require_sound(3, float("inf"))


def test_no_samples(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"task\.dataset=0: has no samples; nearest legal value: 1"):
        Loop(tmp_path, replace(MLP, dataset=Lines(length=0)), steps=6)


def test_measurements_without_end_leave_room_for_the_last_word(tmp_path: Path) -> None:
    """A message holds so much, and with one that is too long its rank would have said nothing."""
    found = {"accuracy": 0.5, "x" * 65: 1.0, "\udcff": 1.0, **{f"{n} \N{PILE OF POO}": n / 7 for n in range(5_000)}}
    loop = Loop(tmp_path, replace(MLP, evaluate=lambda _: found), steps=1)
    loop.executor.run(None)
    told = loop.executor.metrics
    assert (told["accuracy"], told["0 \N{PILE OF POO}"]) == ("0.5", "0")
    words = RankMessage(rank=0, step=1, section="finished", metrics=told, oplog_count=1, oplog_head="0" * 64).wire()
    assert len(json.dumps(words)) < MAX_MESSAGE


PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({"model": None}, r"task\.model='NoneType': is not callable"),
    "loss": ({"loss": 1.0}, r"task\.loss='float': is not callable"),
    "optimizer": ({"optimizer": object()}, r"task\.optimizer='object': is not callable"),
    "dataset": ({"dataset": iter([1])}, r"task\.dataset='list_iterator': gives no sample by its number"),
}


@pytest.mark.parametrize(("changes", "words"), PARTS.values(), ids=PARTS)
def test_a_part_that_cannot_be_one_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        replace(MLP, **changes)


def test_a_part_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half.py").write_text(
        "from kuangchao_worker.tasks import Task\ndef make(args):\n    return Task(model=lambda: None)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TypeError, match="'dataset', 'loss', and 'optimizer'") as found:
        load_task("half:make", {})
    assert "half.py:3 in make" in describe(found.value)
