"""A chain that is not what the model does is refused: a pipeline runs the links alone."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
        self.act, self.calls = act, 0
        self.first, self.last = nn.Linear(16, 4), nn.Linear(4, 1)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.act(self, given)


def through(net: Net, hidden: torch.Tensor) -> torch.Tensor:
    for block in net.blocks:
        hidden = block(hidden)
    return hidden


def untrained(net: Net, hidden: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return through(net, hidden)


def written(part: nn.Module, name: str, hidden: torch.Tensor, value: object = None) -> torch.Tensor:
    setattr(part, name, hidden if value is None else value)
    return hidden


def aside(net: Net, hidden: torch.Tensor) -> torch.Tensor:
    net.aux = hidden.square().mean()
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


def recomputed_otherwise(net: Net, given: torch.Tensor) -> torch.Tensor:
    hidden = net.first(given)
    for block in net.blocks:
        hidden = checkpoint(block, hidden, use_reentrant=True)
    return net.last(hidden)  # type: ignore[no-any-return]


def on_values(net: Net, given: torch.Tensor) -> torch.Tensor:
    return net.last(net.first(given) * given.mean().item())  # type: ignore[no-any-return]


@pytest.mark.parametrize("act", [fine, recomputed, recomputed_otherwise, on_values])
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
        (lambda net, x: net.last(untrained(net, net.first(x))), "blocks.0'.*gives what has no gradient"),
        (lambda net, x: net.last(through(net, aside(net, net.first(x)))), "the model'.*beside its links .pow"),
        (lambda net, x: net.last(through(net, written(net, "kept", net.first(x)))), "the model'.*writes kept"),
        (lambda net, x: net.last(through(net, written(net, "calls", net.first(x), net.calls + 1))), "writes calls"),
        (lambda net, x: net.last(through(net, written(net.last, "skip", net.first(x)))), "writes last.skip"),
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


HOOKS: dict[str, tuple[Callable[[Net], object], str]] = {
    "of what it is given": (
        lambda net: net.register_forward_pre_hook(lambda _, given: (given[0] * 2,)),
        "first'.*does not get what the model is given",
    ),
    "of what it gives": (
        lambda net: net.register_forward_hook(lambda _, __, output: output * 2),
        "last'.*does not give the model's output",
    ),
    "of its gradients": (
        lambda net: net.register_full_backward_hook(lambda _, given, __: given),
        "the model'.*has hooks",
    ),
}


@pytest.mark.parametrize(("hook", "said"), HOOKS.values(), ids=HOOKS)
def test_what_a_hook_of_the_model_does_would_be_left_out(hook: Callable[[Net], object], said: str) -> None:
    def made() -> Net:
        net = Net(fine)
        hook(net)
        return net

    with pytest.raises(InvalidInputError, match=said):
        check(replace(mlp({}), model=made, rules=RULES))


class Passing(Block):
    """Hands on beside the chain what it is given."""

    def forward(self, hidden: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.aux = super().forward(hidden).mean()
        return self.inner(hidden)  # type: ignore[no-any-return]


class Taking(nn.Module):
    """Takes from another module what is none of its own."""

    def __init__(self, other: Passing) -> None:
        super().__init__()
        self.other = [other]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.other[0].aux


def test_a_link_that_takes_something_from_another_is_refused() -> None:
    def made() -> Net:
        net = Net(fine)
        first = Passing()
        net.blocks = nn.ModuleList([first, Taking(first)])
        return net

    with pytest.raises(InvalidInputError, match=r"blocks\.1'.*takes more than it is given: blocks\.0\.inner"):
        check(replace(mlp({}), model=made, rules=RULES))


def test_links_may_keep_what_they_like() -> None:
    check(replace(mlp({}), model=passing, rules=RULES))


def passing() -> Net:
    net = Net(fine)
    net.blocks = nn.ModuleList([Passing(), Passing()])
    return net


Loss = Callable[[Any, torch.Tensor], torch.Tensor]
LOSSES: dict[str, tuple[Loss, str]] = {
    "what a link keeps": (lambda net, y: y.mean() + net.blocks[1].aux, "=.blocks.1.inner.*by another way"),
    "weights": (lambda net, y: y.mean() + net.last.weight.norm(), "=.last.weight.*by another way"),
    "a value": (lambda net, y: y.mean() * net.first.in_features, "=.first.*takes of the model"),
    "two calls": (lambda net, y: net(y.new_zeros(2, 16)).mean() + y.mean(), "=2: calls of the model"),
}


@pytest.mark.parametrize(("loss", "said"), LOSSES.values(), ids=LOSSES)
def test_a_loss_that_takes_more_than_the_output_is_refused(loss: Loss, said: str) -> None:
    made = replace(mlp({}), model=passing, rules=RULES, loss=lambda module, batch: loss(module, module(batch[0])))
    with pytest.raises(InvalidInputError, match=f"task.loss{said}"):
        check(made)


def test_of_a_loss_on_values_the_model_is_compared_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    loss = lambda module, batch: module(batch[0]).mean() * batch[1].mean().item()  # noqa: E731
    check(replace(task(fine), loss=loss))
    assert "the loss is not compared with the model" in caplog.text
    with pytest.raises(InvalidInputError, match="does not get what first gives"):
        check(replace(task(lambda net, x: net.last(through(net, net.first(x) * 2))), loss=loss))


class Packed(nn.Module):
    """Gives a tuple, and takes one."""

    def forward(self, hidden: Any) -> Any:
        return hidden[0] if isinstance(hidden, tuple) else (hidden,)


def test_links_hand_on_one_tensor() -> None:
    def made() -> Net:
        net = Net(lambda net, given: net.last(through(net, net.first(given))))
        net.blocks = nn.ModuleList([Packed(), Packed()])
        return net

    with pytest.raises(InvalidInputError, match=r"blocks\.1'.*is called with a tuple; a link takes one tensor"):
        check(replace(mlp({}), model=made, rules=RULES))
