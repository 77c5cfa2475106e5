"""A chain that is not what the model does is refused: a pipeline runs the links alone."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.rules import ParallelRules
from kuangchao_worker.layers.state.chain import Stage, chain, units
from kuangchao_worker.rank.chained import require_chain
from kuangchao_worker.rank.stages import model_input
from kuangchao_worker.tasks import Task, load_task
from kuangchao_worker.tasks.mlp import mlp

RULES = ParallelRules(chain=("first", "blocks.*", "last"))
Between = Callable[["Net", torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """Adds to what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, hidden: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return hidden + scale * self.inner(hidden)


class Net(nn.Module):
    """Links, called as `act` says."""

    def __init__(self, act: Between) -> None:
        super().__init__()
        self.act = act
        self.first, self.last = nn.Linear(16, 4), nn.Linear(4, 1)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.act(self, given)


def through(net: Net, hidden: torch.Tensor) -> torch.Tensor:
    for block in net.blocks:
        hidden = block(hidden)
    return hidden


def task(act: Between, rules: ParallelRules = RULES) -> Task:
    return replace(mlp({}), model=lambda: Net(act), rules=rules)


def check(made: Task) -> None:
    require_chain(made, lambda module: chain(module, made.rules))


def fine(net: Net, given: torch.Tensor) -> torch.Tensor:
    return net.last(through(net, net.first(given.view_as(given))).contiguous())  # type: ignore[no-any-return]


def recomputed(net: Net, given: torch.Tensor) -> torch.Tensor:
    hidden = net.first(given)
    for block in net.blocks:
        hidden = checkpoint(block, hidden, use_reentrant=False)
    return net.last(hidden)  # type: ignore[no-any-return]


def on_values(net: Net, given: torch.Tensor) -> torch.Tensor:
    return net.last(net.first(given) * given.mean().item())  # type: ignore[no-any-return]


@pytest.mark.parametrize("act", [fine, recomputed, on_values])
def test_a_model_that_calls_its_links_in_turn_is_one_and_who_needs_values_is_believed(act: Between) -> None:
    check(task(act))


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda net, x: net.last(through(net, net.first(x) * 2)), "blocks.0'.*does not get what first gives"),
        (lambda net, x: net.last(through(net, net.first(x)).mul_(2)), "last'.*does not get what blocks.1 gives"),
        (lambda net, x: net.last(through(net, (h := net.first(x))) + h), "last'.*does not get what blocks.1 gives"),
        (lambda net, x: net.last(through(net, net.first(x + 1))), "first'.*does not get what the model is given"),
        (lambda net, x: net.last(through(net, net.first(x))) + 1, "last'.*does not give the model's output"),
        (lambda net, x: net.last(net.blocks[1](net.first(x))), "is not the order.*first, blocks.1, last"),
        (lambda net, x: net.last(net.blocks[1](net.blocks[0](net.first(x)), scale=2.0)), "called with 2 values"),
    ],
)
def test_what_a_pipeline_would_leave_out_is_refused(act: Between, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        check(task(act))


def test_a_sequential_with_a_forward_of_its_own_is_refused() -> None:
    class Scaled(nn.Sequential):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return super().forward(given * 2)  # type: ignore[no-any-return]

    made = replace(mlp({}), model=lambda: Scaled(nn.Linear(16, 4), nn.Linear(4, 1)))
    with pytest.raises(InvalidInputError, match=r"'0'.*does not get what the model is given"):
        check(made)


def test_one_module_in_several_places_is_a_link_at_each() -> None:
    act, linear = nn.Tanh(), nn.Linear(4, 4)
    module = nn.Sequential(OrderedDict(a=linear, b=act, c=linear, d=act))
    made = replace(mlp({}), model=lambda: module)
    names = chain(module, made.rules)
    assert names == ("a", "b", "c", "d")
    assert units(module, names) == [linear], "one unit, whose parameters are divided once"
    given = torch.randn(2, 4)
    assert torch.equal(Stage(module, names)(given), module(given))
    net = Net(through)
    net.blocks = nn.ModuleList([Block()] * 3)
    assert chain(net, RULES) == ("first", "blocks.0", "blocks.1", "blocks.2", "last")


def test_a_model_may_be_given_its_tensor_by_name() -> None:
    made = replace(mlp({}), loss=lambda module, batch: module(input=batch[0]).sum())
    batch = made.dataset[0:2]
    assert model_input(made, batch) is batch[0]


@pytest.mark.parametrize("name", ["transformer", "moe"])
def test_the_reference_models_are_compared(name: str, caplog: pytest.LogCaptureFixture) -> None:
    made = load_task(f"kuangchao_worker.tasks.text:{name}", {"windows": "8"})
    check(made)
    assert caplog.messages == [], "experts are chosen by values, of which the check has none"
