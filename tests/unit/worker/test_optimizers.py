"""Optimizers of all kinds: what they keep comes back from a checkpoint, whatever the plan, or is refused by name."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adafactor, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, SequentialLR

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Sharding
from kuangchao_contracts.ports.state import RestoreRequest
from kuangchao_worker.layers.state import optimizers
from kuangchao_worker.layers.state.hyperparameters import hyperparameters
from kuangchao_worker.layers.state.optimizers import divided_by
from kuangchao_worker.layers.state.readable import readable
from kuangchao_worker.rank.wiring import make_parameters
from kuangchao_worker.tasks.mlp import mlp
from tests.unit.worker.fakegate import make_plan
from tests.unit.worker.parts import CAPABILITY, committed, make_state, save, train

CPU = torch.device("cpu")


class Note:
    """An object of a task's own."""


class Noting(SGD):
    """Keeps something of each parameter that is no tensor."""

    note: Any = Note()

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["note"] = self.note
        return super().step(closure)


@pytest.mark.parametrize(
    ("note", "kind"), [(Note(), rf"{__name__}\.Note"), (lambda _: 0, r"builtins\.method"), ([Note()], r".*\.Note")]
)
def test_an_object_that_no_checkpoint_gives_back_is_refused_at_the_first_save(
    tmp_path: Path, note: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Noting, "note", note)
    task = replace(mlp({}), optimizer=lambda parameters: Noting(parameters, lr=0.1))
    state = make_state(task, tmp_path)
    train(state, task, 1, 1)
    with pytest.raises(
        InvalidInputError, match=rf"task\.optimizer='{kind}': is the class of optimizer\.state\.0\.note"
    ):
        save(state, tmp_path, 1)


def test_numbers_of_numpy_come_back(tmp_path: Path) -> None:
    """Most schedules that are written by hand use NumPy's cosine; torch opens no file with its numbers."""
    task = replace(mlp({}), scheduler=lambda optimizer: LambdaLR(optimizer, lambda step: np.cos(step / 99)))
    state = make_state(task, tmp_path)
    train(state, task, 1, 2)
    save(state, tmp_path, 2)
    expected, ref, other = train(state, task, 3, 5), committed(tmp_path, 2), make_state(task, tmp_path, seed=9)
    other.restore(CAPABILITY, RestoreRequest(checkpoint=ref, directory=str(tmp_path / ref.path)))
    assert train(other, task, 3, 5) == expected


def test_what_torch_keeps_is_let_pass_as_it_is() -> None:
    optimizer = Adam([nn.Parameter(torch.ones(2))], lr=0.1)
    parts = [OneCycleLR(optimizer, 1.0, total_steps=9), LambdaLR(optimizer, lambda _: 1.0)]
    state = SequentialLR(optimizer, parts, milestones=[3]).state_dict()
    content = {"scheduler": state, "sizes": torch.Size((2,))}
    assert str(readable({"shared.pt": content})) == str({"shared.pt": content})


class Two(Optimizer):
    """Is made of two, whose states it keeps side by side."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        every = list(parameters)
        super().__init__(every, {})
        self.both = SGD(every[:1], lr=0.1), Adam(every[1:])

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.both[0].state_dict(), "second": self.both[1].state_dict()}

    def step(self, closure: Any = None) -> Any:
        for one in self.both:
            one.step(closure)


def test_an_optimizer_of_two_is_refused_where_a_plan_splits_the_model_and_nowhere_else() -> None:
    task = replace(mlp({}), optimizer=Two, scheduler=None)
    make_parameters(task, CPU, 0, make_plan(2))
    with pytest.raises(InvalidInputError, match=r"task\.optimizer='Two': has a state_dict of \['first', 'second'\]"):
        make_parameters(task, CPU, 0, make_plan(2).replace(sharding=Sharding.FULL))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            RuntimeError("aten.pow_: in-place operations are not supported\nmore"),
            r"'Adafactor': cannot.*not supported;",
        ),
        (torch.OutOfMemoryError("out of memory"), None),
        (RuntimeError("[gloo/transport/tcp/pair.cc:5] Connection closed by peer"), None),
    ],
)
def test_an_update_that_torch_cannot_make_in_pieces(
    error: Exception, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizers, "DTensor", nn.Parameter)
    optimizer = Adafactor([nn.Parameter(torch.ones(2))])
    with pytest.raises(InvalidInputError if told else type(error), match=told), divided_by(optimizer):
        raise error
    optimizer.state[optimizer.param_groups[0]["params"][0]]["step"] = 1
    with pytest.raises(type(error)), divided_by(optimizer):
        raise error


def one(lr: Any = 0.1, **more: Any) -> list[dict[str, Any]]:
    return [{"params": [nn.Parameter(torch.ones(1))], "lr": lr, **more}]


@pytest.mark.parametrize(
    ("make", "same"),
    [
        (lambda: SGD(one()), True),
        (lambda: SGD([nn.Parameter(torch.zeros(1))], lr=torch.tensor(0.1)), True),
        (lambda: SGD(one(0.1 + 1e-12, apart=Note(), rule=lambda: 0)), True),
        (lambda: SGD(one(0.1001)), False),
        (lambda: SGD(one(float("nan"))), False),
        (lambda: SGD(one(), weight_decay=0.1), False),
        (lambda: SGD(one() + one()), False),
        (lambda: Adam(one()), False),
    ],
)
def test_hyperparameters_are_told_alike_in_every_process(make: Callable[[], Optimizer], *, same: bool) -> None:
    assert (hyperparameters(make()) == hyperparameters(SGD(one()))) is same
