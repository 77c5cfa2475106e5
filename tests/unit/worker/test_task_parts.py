"""Parts of a task that torch has and no rank can use as they are: each is refused by name before the first step."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import IterableDataset

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Sharding
from kuangchao_worker.rank.wiring import make_parameters
from kuangchao_worker.tasks import Task, TaskNotFoundError, load_task
from kuangchao_worker.tasks.mlp import mlp
from tests.unit.worker.fakegate import make_plan
from tests.unit.worker.parts import Loop

MLP = mlp({"dropout": "0", "samples": "40"})


class Stream(IterableDataset[Any]):
    """Says how many there are, and gives them in an order of its own."""

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": nn.Linear(1, 1)}, r"task\.model='Linear': is a model and no function that makes one"),
        ({"dataset": Stream()}, r"task\.dataset='Stream': gives no sample by its number.*__getitem__"),
    ],
)
def test_a_part_of_another_kind(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        replace(MLP, **changes)


STEPS = [
    ({"scheduler": ReduceLROnPlateau}, r"task\.scheduler='ReduceLROnPlateau': steps only with metrics"),
    ({"optimizer": torch.optim.LBFGS}, r"task\.optimizer='LBFGS': steps only with closure"),
    ({"optimizer": list}, r"task\.optimizer='list': is no torch Optimizer"),
    ({"scheduler": lambda _: None}, r"task\.scheduler='NoneType': is no torch LRScheduler"),
]


@pytest.mark.parametrize(("changes", "words"), STEPS)
def test_what_wants_more_for_a_step_than_gradients(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        make_parameters(replace(MLP, **changes), torch.device("cpu"), 0, make_plan(1))


def test_the_same_where_a_plan_shards_the_model() -> None:
    plan = make_plan(2).replace(sharding=Sharding.FULL)
    with pytest.raises(InvalidInputError, match=r"task\.optimizer='LBFGS': steps only with closure"):
        make_parameters(replace(MLP, optimizer=torch.optim.LBFGS), torch.device("cpu"), 0, plan)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, r"task\.evaluate='NoneType': is no dict of numbers by name"),
        ({"best": "yes"}, r"task\.evaluate\.best='str': is no single number"),
        ({"recall": torch.ones(3)}, r"task\.evaluate\.recall='Tensor': is no single number"),
    ],
)
def test_an_evaluation_that_measures_no_numbers(tmp_path: Path, found: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        evaluated(tmp_path, replace(MLP, evaluate=lambda _: found))


def test_measurements_may_be_tensors(tmp_path: Path) -> None:
    task = replace(MLP, evaluate=lambda _: {"accuracy": torch.tensor([0.5])})  # type: ignore[dict-item]  # as people do
    assert evaluated(tmp_path, task) == {"accuracy": 0.5}


def evaluated(folder: Path, task: Task) -> dict[str, float]:
    return Loop(folder, task, steps=1).executor.algorithm.evaluate()


def test_a_function_without_the_arguments_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alone.py").write_text("def make():\n    raise AssertionError('is not called')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TaskNotFoundError, match=r"make must take one argument, the dict of spec\.taskArgs"):
        load_task("alone:make", {})


@pytest.mark.parametrize("name", ["digits:digits", "text:transformer"])
def test_tasks_of_ours_measure_where_the_model_is(name: str) -> None:
    """What stays on the CPU is refused by torch; on the meta device only the number itself cannot be had."""
    task = load_task(f"kuangchao_worker.tasks.{name}", {})
    assert task.evaluate is not None
    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        task.evaluate(task.model().to("meta").eval())


def test_a_file_in_place_of_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "filed.py").write_text("def make(args): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TaskNotFoundError, match=r"no module 'filed\.py' .*without \.py: filed:make"):
        load_task("filed.py:make", {})
