"""Models as people bring them: each does one thing that torch's ways to reduce gradients stumble over."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from kuangchao_contracts.rules import ParallelRules
from kuangchao_worker.tasks import Batch, Task

WIDE, NARROW = 10, 3


class Towers(nn.Module):
    """Two models in one, of which a call uses one: the loss calls it twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDE, 7), nn.Linear(NARROW, 7)

    def forward(self, one: torch.Tensor | None = None, other: torch.Tensor | None = None) -> torch.Tensor:
        found: torch.Tensor = self.one(one) if one is not None else self.other(other)
        return found


class Plain(nn.Module):
    """Two layers, and a third that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.never, self.last = nn.Linear(WIDE, 7), nn.Linear(4, 4), nn.Linear(7, NARROW)

    def forward(self, given: torch.Tensor) -> Any:
        return self.last(torch.tanh(self.first(given)))


class Result:
    """What a model gives, in a class of its own."""

    def __init__(self, found: torch.Tensor) -> None:
        self.found = found


class Wrapped(Plain):
    """Gives what torch does not know to hold a tensor."""

    def forward(self, given: torch.Tensor) -> Any:
        return Result(super().forward(given))


class Seldom(Plain):
    """Has weights that some samples need only, so that not all ranks use them in a step, nor all steps."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(7, 7)

    def forward(self, given: torch.Tensor) -> Any:
        hidden, asked = torch.tanh(self.first(given)), given[:, :1] > 1.2
        if asked.any():
            hidden = torch.where(asked, torch.tanh(self.extra(hidden)), hidden)
        return self.last(hidden)


class Counted(Plain):
    """Keeps a running mean of what it has seen, and trains with it."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDE))

    def forward(self, given: torch.Tensor) -> Any:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.5).add_(given.mean(0), alpha=0.5)
        return super().forward(given - self.mean)


class Block(nn.Module):
    """A layer with weights that nobody uses beside its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.never = nn.Linear(7, 7), nn.Linear(5, 5)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.tanh(self.inner(hidden))


class Chained(nn.Module):
    """Links one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDE, 7), nn.Linear(7, NARROW)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, hidden: torch.Tensor) -> Any:
        for link in (self.first, *self.blocks, self.last):
            hidden = link(hidden)
        return hidden


class Again(Chained):
    """Computes its blocks once more in the backward pass, as torch's checkpoint did first; one is for some samples."""

    def forward(self, hidden: torch.Tensor) -> Any:
        always, seldom = self.blocks
        hidden = checkpoint(always, self.first(hidden), use_reentrant=True)
        asked = hidden[:, :1] > 0.8
        if asked.any():
            hidden = torch.where(asked, checkpoint(seldom, hidden, use_reentrant=True), hidden)
        return self.last(hidden)


class Rare(Block):
    """A link with weights that some samples need only."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(7, 7)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        found = super().forward(hidden)
        asked = hidden[:, :1] > 0.8
        return torch.where(asked, torch.tanh(self.extra(found)), found) if asked.any() else found


class Deep(Chained):
    """Leaves links out as its samples say, as stochastic depth does: some of them, the last ones, all but the first."""

    def forward(self, hidden: torch.Tensor) -> Any:
        luck = int(hidden.sum().item() * 8)
        hidden = self.first(hidden)
        for number, block in enumerate(self.blocks):
            if (luck >> number) % 2:
                hidden = hidden + block(hidden)
        return self.last(hidden) if luck % 5 else hidden[:, :NARROW]


class Branches(Chained):
    """Links that are not all used whole by each rank in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Rare() for _ in range(2))


def frozen() -> nn.Module:
    """Of which the first layers are not trained."""
    module = nn.Sequential(nn.Linear(WIDE, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, NARROW))
    module[:4].requires_grad_(requires_grad=False)
    return module


def twice() -> nn.Module:
    """With one activation, and one layer, in two places."""
    act, layer = nn.Tanh(), nn.Linear(7, 7)
    return nn.Sequential(nn.Linear(WIDE, 7), act, layer, act, layer, act, nn.Linear(7, 7), act, nn.Linear(7, NARROW))


def transposed() -> nn.Module:
    """With weights that lie in memory as their transpose does."""
    module = Plain()
    module.first.weight = nn.Parameter(torch.randn(WIDE, 7).t())
    return module


MODELS: dict[str, Callable[[], nn.Module]] = {
    "towers": Towers, "wrapped": Wrapped, "seldom": Seldom, "counted": Counted, "chained": Chained,
    "again": Again, "branches": Branches, "deep": Deep, "frozen": frozen, "twice": twice, "transposed": transposed,
}  # fmt: skip


def brought(args: dict[str, str]) -> Task:
    """The model by the name in `model`, in fp64."""
    kind = args["model"]
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (torch.randn(96, n, generator=generator, dtype=torch.float64) for n in (WIDE, NARROW))

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        if kind == "towers":
            return nn.functional.mse_loss(module(one=batch[0]), module(other=batch[1]))
        found = module(batch[0])
        return nn.functional.mse_loss(found.found if kind == "wrapped" else found, batch[1])

    def optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return AdamW(parameters, lr=1e-2)

    rules = (
        ParallelRules(chain=("first", "blocks.*", "last"))
        if kind in ("chained", "again", "branches", "deep")
        else ParallelRules()
    )
    data = TensorDataset(inputs, targets)
    return Task(model=lambda: MODELS[kind]().double(), dataset=data, loss=loss, optimizer=optimizer, rules=rules)
