"""What is found of how a model may be split, and above all what is not: a wrong pair trains another model unnoticed."""

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.rules import ParallelRules, TensorStyle
from kuangchao_worker.rank.ruled import ruled
from kuangchao_worker.tasks import Task, load_task
from kuangchao_worker.tasks.found.axes import Axis, LostError, viewed
from kuangchao_worker.tasks.found.find import Found, find_rules
from tests.unit.worker.fakegate import make_plan

WIDTH = 8
PAIR = {"a": "columns", "b": "rows"}


class Net(nn.Module):
    """Two linear layers, and what is between them."""

    def __init__(self, between: Callable[["Net", torch.Tensor], torch.Tensor], **parts: Any) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self._between = between
        for name, part in parts.items():
            setattr(self, name, part())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self._between(self, self.a(x)))


def found(model: Callable[[], nn.Module], ranks: int = 0, data: torch.Tensor | None = None) -> Found:
    samples = TensorDataset(torch.zeros(4, 3, WIDTH) if data is None else data)

    def loss(module: nn.Module, batch: Any) -> torch.Tensor:
        return module(batch[0]).float().square().mean()

    task = Task(model=model, dataset=samples, loss=loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    return find_rules(task, ranks=ranks)


def heads(x: torch.Tensor) -> torch.Tensor:
    """(batch, tokens, features) to (batch, heads, tokens, 4)."""
    return x.unflatten(-1, (-1, 4)).transpose(1, 2)


def changed(x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda gradient: gradient / gradient.norm())
    return x


DIVIDED = {
    "nothing": lambda _, x: x,
    "an activation and dropout": lambda _, x: functional.dropout(functional.gelu(x * 2 + 1), 0.1),
    "in place": lambda _, x: x.relu_().mul_(3),
    "two of one": lambda _, x: x.sigmoid() * x,
    "attention among heads": lambda _, x: (
        functional.scaled_dot_product_attention(heads(x), heads(x), heads(x), is_causal=True).transpose(1, 2).flatten(2)
    ),
    "attention by hand": lambda _, x: (
        ((heads(x) @ heads(x).transpose(-1, -2) / 2).softmax(-1) @ heads(x)).transpose(1, 2).reshape(2, 3, -1)
    ),
    "rotary halves of each head": lambda _, x: (
        torch.cat([-heads(x)[..., 2:], heads(x)[..., :2]], -1).transpose(1, 2).flatten(2)
    ),
    "a norm of each head": lambda _, x: functional.rms_norm(heads(x), (4,)).transpose(1, 2).flatten(2),
    "a mask of tokens": lambda _, x: x.masked_fill(torch.ones(3, 1, dtype=torch.bool), 0.0),
    "a mean over tokens": lambda _, x: x.mean(1, keepdim=True),
    "other dimensions gone and back": lambda _, x: x.unsqueeze(0).squeeze(0).flatten(0, 1).view(2, 3, -1),
    "one token": lambda _, x: x[:, 0],
}
WHOLE = {
    "a softmax of features": (lambda _, x: x.softmax(-1), "_softmax: it takes all of them together"),
    "a norm of features": (lambda _, x: functional.rms_norm(x, (16,)), "mean: it takes all of them together"),
    "a layer norm": (
        lambda _, x: functional.layer_norm(x, (16,)),
        "native_layer_norm does with them is not",
    ),
    "a trained norm of each head": (
        lambda n, x: n.norm(heads(x)).transpose(1, 2).flatten(2),
        "they meet what is trained",
    ),
    "halves that meet": (lambda _, x: torch.cat(x.chunk(2, -1), -1), "split: it takes all of them together"),
    "heads last": (lambda _, x: x.unflatten(-1, (4, -1)).transpose(-1, -2).flatten(2), "takes them mixed with others"),
    "some features": (lambda _, x: functional.pad(x[..., :8], (0, 8)), "slice: it takes all of them together"),
    "a whole tensor": (lambda _, x: x + torch.ones(16), "they meet a tensor that every rank has whole"),
    "a trained factor": (lambda n, x: x * n.factor, "they meet what is trained whole"),
    "a factor from the shape": (lambda _, x: x / x.shape[-1], "div depends on how many features there are"),
    "a shape that is written down": (lambda _, x: x.view(2, 3, 16), "on a part of its features: "),
    "heads that are written down": (lambda _, x: x.view(2, 3, 4, 4).flatten(2), "on a part of its features: "),
    "branches by the shape": (lambda _, x: x if x.shape[-1] == 16 else x * 2, "depends on how many features there are"),
    "heads of any width": (lambda _, x: x.view(2, 3, 4, -1).softmax(-1).flatten(2), "_softmax depends on how many"),
    "features with features": (lambda _, x: x @ (x.transpose(1, 2) @ x), "bmm: they meet in a product of matrices"),
    "features that are counted": (lambda _, x: x * torch.full((1,), x.shape[-1]), "full depends on how many"),
    "an order of features": (lambda _, x: x.flip(-1), "flip: it takes all of them together"),
    "a sum of all": (lambda _, x: x * x.sum(), "sum: it takes all of them together"),
    "a number made a tensor": (lambda _, x: x / torch.tensor(float(x.shape[-1])), "tensor depends on how many"),
    "a number of the processor": (lambda _, x: x * torch.Tensor([x.shape[-1]]).to(x), "lift_fresh depends on how"),
    "an order by the shape": (
        lambda _, x: x if x.shape[-1] == 16 else x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2),
        "on a part of its features: b takes them mixed with others",
    ),
    "gradients that are changed": (lambda _, x: changed(x), "a hook changes their gradients"),
    "a look at another place": (lambda _, x: x.roll(1, -1), "what roll does with them is not known"),
}
PARTS = {
    "norm": lambda: nn.LayerNorm(4),
    "factor": lambda: nn.Parameter(torch.ones(1)),
}


@pytest.mark.parametrize("between", DIVIDED.values(), ids=DIVIDED)
def test_what_takes_features_one_by_one_is_divided(between: Any) -> None:
    assert found(lambda: Net(between)).rules.tensor == PAIR


@pytest.mark.parametrize(("between", "why"), WHOLE.values(), ids=WHOLE)
def test_what_needs_them_together_is_left_whole(between: Any, why: str) -> None:
    answer = found(lambda: Net(between, **PARTS))
    assert answer.rules.tensor == {}
    assert why in answer.remark


def test_what_others_take_as_well_is_left_whole() -> None:
    class Two(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inner = self.a(x)
            return self.b(inner).sum() + inner.sum()

    assert found(lambda: Two(lambda _, x: x)).rules.tensor == {}


def test_a_layer_that_is_called_twice_or_shares_its_weight_is_left_whole() -> None:
    class Twice(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(self.b(self.a(x))))

    def shared() -> nn.Module:
        net = Net(lambda _, x: x, c=lambda: nn.Linear(WIDTH, 16))
        net.c.weight = net.a.weight
        return net

    assert "is called more than once" in found(lambda: Twice(lambda _, x: x)).remark
    assert found(shared).rules.tensor == {}


def test_a_layer_whose_weights_something_else_takes_is_left_whole() -> None:
    class Penalty(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x)) + self.a.weight.norm()

    class Tables(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x)) + functional.embedding(torch.zeros(3, dtype=torch.long), self.a.weight)

    for net in (Penalty, Tables):
        assert "something else takes the weights of a" in found(lambda net=net: net(DIVIDED["nothing"])).remark


HOOKS = {
    "of its output": lambda a: a.register_forward_hook(lambda _, __, output: output.softmax(-1)),
    "of its gradients": lambda a: a.register_full_backward_hook(lambda _, given, __: (given[0] * 0,)),
    "of its weight's gradients": lambda a: a.weight.register_hook(lambda gradient: gradient / gradient.norm()),
    "in place of its class": lambda a: setattr(a, "forward", lambda x: x.repeat(1, 1, 2).softmax(-1)),
    "of a bias that is another's": lambda a: a.register_module("inner", held(a.bias)),
}


def held(parameter: nn.Parameter) -> nn.Module:
    return nn.ParameterList([parameter])


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_a_layer_that_a_hook_changes_is_left_whole(hook: Any) -> None:
    def hooked() -> nn.Module:
        net = Net(DIVIDED["nothing"])
        hook(net.a)
        return net

    assert found(hooked).rules.tensor == {}


def test_a_layer_after_whose_error_the_model_goes_on_is_left_whole() -> None:
    def tried(net: Any, x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(RuntimeError):
            net.a(x)
        return x / x.norm()

    assert "a layer ended in an error" in found(lambda: Net(tried)).remark


def test_two_pairs_that_code_looks_at_together_are_not_both_divided() -> None:
    class Both(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = self.a(x)
            second = self.c(self.b(first)).tanh()
            return self.d(second) * max(first.shape[-1], second.shape[-1])

    parts = {"c": lambda: nn.Linear(WIDTH, 16), "d": lambda: nn.Linear(16, WIDTH)}
    assert found(lambda: Both(DIVIDED["nothing"], **parts), ranks=2).rules.tensor == PAIR


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -gradients[0]


def without(net: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return net.c(x)


def kept(net: Any, x: torch.Tensor, value: Any) -> torch.Tensor:
    net.kept = value
    return net.c(x)


CHAINS = {
    "a view": (lambda n, x: n.c(x.view(x.shape)), True),
    "a checkpoint": (lambda n, x: checkpoint(n.c, x, use_reentrant=True), True),
    "a detached tensor": (lambda n, x: n.c(x.detach()), False),
    "no gradients": (without, False),
    "gradients turned around": (lambda n, x: n.c(Reversed.apply(x)), False),
    "a hook of gradients": (lambda n, x: n.c(changed(x)), False),
    "a value kept beside them": (lambda n, x: kept(n, x, x.square().mean()), False),
    "a tensor kept beside them": (lambda n, x: kept(n, x, x), False),
    "what is computed and dropped": (lambda n, x: (x.mean(), n.c(x))[1], False),
}


@pytest.mark.parametrize(("between", "follows"), CHAINS.values(), ids=CHAINS)
def test_modules_follow_one_another_where_gradients_do(between: Any, *, follows: bool) -> None:
    answer = found(lambda: Net(between, c=lambda: nn.Linear(16, 16)))
    assert answer.rules.chain == (("a", "c", "b") if follows else ())


def test_a_loss_that_takes_more_than_the_model_gives_makes_no_chain() -> None:
    task = load_task("kuangchao_worker.tasks.text:transformer", {"layers": "2", "windows": "8"})
    assert find_rules(task).rules.chain
    penalty = replace(task, loss=lambda module, batch: task.loss(module, batch) + module.head.weight.norm())
    assert find_rules(penalty).rules.chain == ()


def test_what_a_hook_of_the_model_does_is_not_left_out_of_a_chain() -> None:
    def hooked() -> nn.Module:
        net = Net(DIVIDED["nothing"])
        net.register_forward_pre_hook(lambda _, given: (given[0] * 2,))
        return net

    assert found(lambda: Net(DIVIDED["nothing"])).rules.chain == ("a", "b")
    assert found(hooked).rules.chain == ()


def test_features_are_divided_only_among_ranks_that_divide_their_heads() -> None:
    between = DIVIDED["attention among heads"]
    assert found(lambda: Net(between), ranks=4).rules.tensor == PAIR
    assert "4 parts cannot be divided among 8 ranks" in found(lambda: Net(between), ranks=8).remark
    assert found(lambda: Net(DIVIDED["nothing"]), ranks=8).rules.tensor == PAIR
    assert "parts cannot be divided among 3 ranks" in found(lambda: Net(DIVIDED["nothing"]), ranks=3).remark


def test_layers_in_a_row_pair_two_by_two() -> None:
    model = lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(5)))  # noqa: E731
    answer = found(model)
    assert answer.rules.tensor == {"0": "columns", "1": "rows", "2": "columns", "3": "rows", "4": "head"}
    assert answer.rules.chain == (), "a Sequential has its own"


def test_tables_are_divided_where_nothing_is_special_about_a_row() -> None:
    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain, self.padded = nn.Embedding(16, 4), nn.Embedding(16, 4, padding_idx=0)
            self.few, self.tied, self.taken = nn.Embedding(3, 4), nn.Embedding(16, 4), nn.Embedding(16, 4)
            self.head = nn.Linear(4, 16, bias=False)
            self.head.weight = self.tied.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            known = self.plain(tokens) + self.padded(tokens) + self.few(tokens * 0) + self.tied(tokens)
            return functional.linear(self.head(known)[..., :4], self.taken.weight) + self.taken(tokens).sum()

    assert found(Tables, data=torch.zeros(4, 3, dtype=torch.long)).rules.tensor == {"plain": TensorStyle.EMBEDDING}


def test_the_reference_transformer_shows_what_its_rules_say() -> None:
    task = load_task("kuangchao_worker.tasks.text:transformer", {"layers": "2", "windows": "8"})
    shown = find_rules(task).rules
    own = {name: style for name, style in task.rules.tensor.items() if style not in ("sequence", "whole")}
    assert shown.tensor == own
    assert shown.chain == task.rules.chain


def test_a_model_that_needs_values_shows_nothing_and_says_so() -> None:
    answer = found(lambda: Net(lambda _, x: x if x.sum() > 0 else -x))
    assert answer.rules == ParallelRules()
    assert answer.remark


def test_what_a_model_leaves_to_chance_falls_the_same_way_for_every_rank() -> None:
    chance = lambda _, x: x if random.random() < 0.5 else x.softmax(-1)  # noqa: E731
    answers = [found(lambda: Net(chance)) for _ in range(8)]
    assert answers == answers[:1] * 8


def test_what_a_task_says_itself_stands() -> None:
    task = load_task("kuangchao_worker.tasks.text:transformer", {"layers": "2", "windows": "8"})
    plan = make_plan(2, tensor=2)
    assert ruled(task, plan, quiet=True) is task
    bare = load_task("kuangchao_worker.tasks.mlp:mlp", {"samples": "8"})
    assert ruled(bare, make_plan(2), quiet=True) is bare
    assert ruled(bare, plan, quiet=True).rules.tensor


def with_rules(between: Any) -> Task:
    """A task with rules of its own for a model of two layers."""
    task = Task(
        model=lambda: Net(between, **PARTS),
        dataset=TensorDataset(torch.zeros(4, 3, WIDTH)),
        loss=lambda module, batch: module(batch[0]).square().mean(),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )
    return replace(task, rules=ParallelRules(tensor={name: TensorStyle(style) for name, style in PAIR.items()}))


def attended(x: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(x, x, x)


WRONG = {
    "heads that are written down": (
        lambda _, x: x.view(2, 3, 4, -1).softmax(-1).flatten(2),
        "_softmax takes 2 of them",
    ),
    "attention with them": (
        lambda _, x: attended(x.view(2, 3, 4, -1).transpose(1, 2)).transpose(1, 2).flatten(2),
        "4 of all|depends on how many",
    ),
    "products of what cannot be followed": (
        lambda _, x: (
            functional.normalize(x.view(2, 3, 4, -1), dim=-1) @ x.view(2, 3, 4, -1).mT @ x.view(2, 3, 4, -1)
        ).flatten(2),
        "bmm takes 2 of them together, and 4 of all",
    ),
    "a softmax of all": (WHOLE["a softmax of features"][0], "_softmax takes 8 of them together, and 16 of all"),
    "a shape that is written down": (WHOLE["a shape that is written down"][0], "the model does not take that: shape"),
    "a factor from the shape": (WHOLE["a factor from the shape"][0], "div depends on how many"),
    "too few of them": (
        lambda _, x: functional.pad(x, (0, 8))[..., :16],
        "b does not take that: it takes 16 features .* gives 16",
    ),
}


@pytest.mark.parametrize(("between", "said"), WRONG.values(), ids=WRONG)
def test_rules_that_divide_what_a_model_counts_on_as_a_whole_are_refused(between: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"task\.rules\.tensor='a'.*1/2: .*({said}).*view\(batch, tokens, -1"):
        ruled(with_rules(between), make_plan(2, tensor=2), quiet=True)


RIGHT = DIVIDED | {
    "each alone, in whatever shape": lambda _, x: x.view(2, 3, 4, -1).cumsum(1).relu().flatten(2),
    "a trained norm of each head": WHOLE["a trained norm of each head"][0],
    "a figure of all, for a log": lambda _, x: (x.detach().abs().mean(), x)[1],
    "what is chunked and joined": WHOLE["halves that meet"][0],
    "a trained factor": WHOLE["a trained factor"][0],
}


@pytest.mark.parametrize("between", RIGHT.values(), ids=RIGHT)
def test_rules_that_a_model_can_follow_are_taken(between: Any, caplog: pytest.LogCaptureFixture) -> None:
    task = with_rules(between)
    assert ruled(task, make_plan(2, tensor=2), quiet=False) is task
    assert caplog.messages == []


def test_rules_of_a_model_that_needs_values_are_believed_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    task = with_rules(lambda _, x: x if x.sum() > 0 else -x)
    assert ruled(task, make_plan(2, tensor=2), quiet=False) is task
    (said,) = caplog.messages
    assert "tensor rules are not tried on its model: " in said


@pytest.mark.parametrize("name", ["transformer", "moe"])
def test_rules_of_the_reference_models_are_taken(name: str, caplog: pytest.LogCaptureFixture) -> None:
    task = load_task(f"kuangchao_worker.tasks.text:{name}", {"layers": "2", "windows": "8"})
    assert ruled(task, make_plan(2, tensor=2), quiet=False) is task
    assert caplog.messages == []


def test_a_plan_that_no_model_can_follow_is_refused() -> None:
    digits = load_task("kuangchao_worker.tasks.digits:digits", {})
    with pytest.raises(InvalidInputError, match=r"plan\.tensor=3: the task has no .*, and its model shows none"):
        ruled(digits, make_plan(3, tensor=3), quiet=True)


@pytest.mark.parametrize(
    ("axis", "shape", "into", "expected"),
    [
        (Axis(2, 1, 16), (2, 3, 16), (2, 3, 4, 4), Axis(2, 1, 4)),
        (Axis(2, 1, 4), (2, 3, 4, 4), (2, 3, 16), Axis(2, 1, 4)),
        (Axis(1, 1, 4), (2, 4, 3, 4), (8, 3, 4), Axis(0, 2, 4)),
        (Axis(0, 2, 4), (8, 3, 4), (2, 4, 3, 4), Axis(1, 1, 4)),
        (Axis(1, 1, 4), (2, 4), (2, 1, 4, 1), Axis(2, 1, 4)),
        (Axis(1, 1, 2), (2, 2, 3, 5), (2, 6, 5), Axis(1, 1, 2)),
    ],
)
def test_an_axis_under_another_shape(axis: Axis, shape: Any, into: Any, expected: Axis) -> None:
    assert viewed(axis, shape, into) == expected


def test_an_axis_that_a_shape_tears_apart_is_lost() -> None:
    with pytest.raises(LostError):
        viewed(Axis(1, 1, 6), (2, 6), (3, 4))
