"""A mixture of experts that may be divided over expert ranks: each token goes to where its experts are, and back.

Tokens are sent by an all-to-all and returned by another (Lepikhin et al. 2020, "GShard", section 3.2), here without a
capacity: no token is dropped, so the result is that of one process.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.profiler import record_function

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker.parallel.groups import present

EVENT = "kuangchao::expert"
"""Under which a profile shows its collectives."""


class Elsewhere(nn.Module):
    """Stands for an expert that another rank has."""

    def forward(self, *given: Any, **named: Any) -> Any:
        """Raise InvalidInputError: experts that are divided are reached by `mixture` only."""
        del given, named
        raise InvalidInputError("task.rules.experts", "given", "but the model calls experts by itself", "mixture")


def share_of(experts: int, rank: int, size: int) -> range:
    """The experts, of so many, that a rank of an expert group has."""
    each = experts // size
    return range(rank * each, (rank + 1) * each)


def mixture(experts: nn.ModuleList, tokens: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """What the chosen experts make of each token, added up by weight. Every expert is called once, with no token too.

    `tokens` (tokens, hidden); `weights` and `chosen` (tokens, experts per token), the latter numbers of `experts`.
    """
    places, order = chosen.flatten().sort(stable=True)
    rows = order // chosen.shape[-1]
    # of sorted numbers; torch.bincount waits for the device, and has nothing for tensors without values
    ends = torch.arange(len(experts) + 1, dtype=places.dtype, device=places.device)
    counts = torch.searchsorted(places, ends).diff()
    made = _made(experts, tokens[rows], counts)
    return torch.zeros_like(tokens).index_add(0, rows, (made * weights.flatten()[order, None]).to(tokens.dtype))


def _made(experts: nn.ModuleList, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """What experts make of tokens that are sorted by expert, `counts` for each."""
    if counts.is_meta:
        # who is chosen is not known where tensors have no values, and makes no other shape
        return _each(list(experts), tokens, [part.shape[0] for part in tokens.tensor_split(len(experts))])
    group = present().expert
    if group is None or not any(isinstance(expert, Elsewhere) for expert in experts):
        return _each(list(experts), tokens, counts.tolist())
    return _over(group, experts, tokens, counts)


def _each(experts: list[nn.Module], tokens: torch.Tensor, counts: list[int]) -> torch.Tensor:
    parts = torch.split(tokens, counts)
    return torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])


def _over(group: dist.ProcessGroup, experts: nn.ModuleList, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The same over the ranks of a group: to those that have the experts, through these, and back."""
    size = dist.get_world_size(group)
    asked = counts.view(size, -1)
    given = torch.empty_like(asked)
    with record_function(EVENT):
        dist.all_to_all_single(given, asked, group=group)
    out, back = asked.sum(dim=1).tolist(), given.sum(dim=1).tolist()
    received = _Exchange.apply(tokens, out, back, group)
    # they came sorted by sender, then by expert
    numbers = torch.arange(given.shape[1], device=given.device).repeat(size).repeat_interleave(given.flatten())
    order = numbers.argsort(stable=True)
    own = [experts[number] for number in share_of(len(experts), dist.get_rank(group), size)]
    made = _each(own, received[order], given.sum(dim=0).tolist())
    returned: torch.Tensor = _Exchange.apply(made[order.argsort()], back, out, group)
    return returned


class _Exchange(torch.autograd.Function):
    """Rows to the ranks of a group, so many to each, for so many from each; gradients go the way back."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, out: list[int], back: list[int], group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.way = out, back, group
        return _exchanged(rows, out, back, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        out, back, group = ctx.way
        return _exchanged(gradients[0], back, out, group), None, None, None


def _exchanged(rows: torch.Tensor, out: list[int], back: list[int], group: dist.ProcessGroup) -> torch.Tensor:
    received = rows.new_empty((sum(back), *rows.shape[1:]))
    with record_function(EVENT):
        dist.all_to_all_single(received, rows.contiguous(), back, out, group=group)
    return received
