"""The language models of the text tasks: they learn, look only back, and say in their rules what they are made of."""

from fnmatch import fnmatch

import pytest
import torch

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker.tasks import Task
from kuangchao_worker.tasks.text import moe, transformer

SMALL = {"hidden": "32", "ffn": "64", "sequence": "32", "windows": "64"}
TASKS = pytest.mark.parametrize("make", [transformer, moe])


def trained(task: Task, steps: int) -> list[float]:
    torch.manual_seed(0)
    module = task.model()
    optimizer = task.optimizer(module.parameters())
    losses = []
    for step in range(steps):
        loss = task.loss(module, task.dataset[torch.arange(8 * step, 8 * step + 8) % 64])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@TASKS
def test_a_model_learns_the_text(make) -> None:
    losses = trained(make(SMALL), 30)
    assert losses[0] == pytest.approx(torch.tensor(256.0).log().item(), abs=0.5), "it begins by knowing nothing"
    assert losses[-1] < 3.3
    assert make(SMALL).evaluate(make(SMALL).model())["testLoss"] > 5


@TASKS
def test_no_token_sees_those_that_follow(make) -> None:
    task = make(SMALL)
    module = task.model()
    tokens = task.dataset[torch.arange(2)][0]
    changed = tokens.clone()
    changed[:, 20:] = 0
    with torch.no_grad():
        assert torch.equal(module(tokens)[:, :20], module(changed)[:, :20])
        assert not torch.equal(module(tokens)[:, 20:], module(changed)[:, 20:])


@TASKS
def test_rules_name_modules_that_are_there_and_the_chain_is_the_whole_model(make) -> None:
    task = make(SMALL)
    module = task.model()
    names = [name for name, _ in module.named_modules()]
    for pattern in (*task.rules.chain, *task.rules.tensor):
        assert any(fnmatch(name, pattern) for name in names), pattern
    linked = [name for name in names if any(fnmatch(name, p) for p in task.rules.chain) and name.count(".") <= 1]
    counted = sum(p.numel() for name in linked for p in module.get_submodule(name).parameters())
    assert counted == sum(p.numel() for p in module.parameters())


def test_the_data_is_the_same_each_time_and_windows_differ() -> None:
    first, second = (transformer(SMALL).dataset[torch.arange(64)] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    inputs, following = first
    assert torch.equal(inputs[:, 1:], following[:, :-1])
    assert len({tuple(row.tolist()) for row in inputs}) == 64


@pytest.mark.parametrize(
    ("args", "field"),
    [({"hidden": "30"}, "hidden"), ({"kvHeads": "3"}, "kvHeads"), ({"experts": "2", "perToken": "3"}, "perToken")],
)
def test_sizes_that_do_not_go_together_are_named(args: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInputError, match=f"taskArgs.{field}="):
        moe(args)
