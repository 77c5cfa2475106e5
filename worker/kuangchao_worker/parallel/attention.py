"""Attention whose tokens may be divided over context ranks, and the positions of the tokens at hand.

Keys and values are gathered over the ranks and their gradients are added up on the way back, as in "The Llama 3 Herd of
Models" (2024), section 3.3.2; a query sees the keys up to its own position in the whole sequence.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import _disable_current_modes

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker.parallel.groups import present
from kuangchao_worker.parallel.tokens import pieces_of

EVENT = "kuangchao::context"
"""Under which a profile shows its collectives."""


def positions(length: int, device: torch.device | None = None) -> torch.Tensor:
    """Positions in the whole sequence of the `length` tokens at hand, shape (length,), integers."""
    group = present().context
    if group is None:
        return torch.arange(length, device=device)
    half = _half(length)
    starts = (piece * half for piece in _pieces(group))
    return torch.cat([torch.arange(start, start + half, device=device) for start in starts])


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool = True, dropout: float = 0.0
) -> torch.Tensor:
    """Scaled dot product attention of shape (batch, heads, tokens, width); keys and values may have fewer heads.

    Raises InvalidInputError where the tokens at hand are not what a context rank gets of a batch.
    """
    groups = present()
    if groups.context is None:
        return scaled_dot_product_attention(
            query, key, value, is_causal=causal, dropout_p=dropout, enable_gqa=_grouped(query, key)
        )
    groups.attended = True
    half = _half(query.shape[-2])
    key, value = _whole(key, value, groups.context)
    if not causal:
        return scaled_dot_product_attention(query, key, value, dropout_p=dropout, enable_gqa=_grouped(query, key))
    mixed = [
        _front(part, key, value, half * (piece + 1), dropout)
        for part, piece in zip(torch.split(query, half, dim=-2), _pieces(groups.context), strict=True)
    ]
    return torch.cat(mixed, dim=-2)


def _pieces(group: dist.ProcessGroup) -> tuple[int, int]:
    return pieces_of(dist.get_rank(group), dist.get_world_size(group))


def _front(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, end: int, dropout: float) -> torch.Tensor:
    """Attention of queries that are the last ones up to `end`; what comes after is not even computed."""
    # a kernel's flag on a GPU. A description, not a tensor: modes that watch operators (recomputation) cannot make it
    with _disable_current_modes():
        mask = causal_lower_right(query.shape[-2], end)
    return scaled_dot_product_attention(
        query,
        key[..., :end, :],
        value[..., :end, :],
        attn_mask=mask,
        dropout_p=dropout,
        enable_gqa=_grouped(query, key),
    )


def _grouped(query: torch.Tensor, key: torch.Tensor) -> bool:
    return query.shape[1] != key.shape[1]


def _half(tokens: int) -> int:
    if tokens % 2:
        raise InvalidInputError("tokens", tokens, "are not the two pieces of a context rank", tokens - 1)
    return tokens // 2


def _whole(key: torch.Tensor, value: torch.Tensor, group: dist.ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of all ranks, in the order of the sequence: one message for both."""
    gathered = _Gather.apply(torch.cat((key, value), dim=-1), group)
    front, back = gathered.chunk(2, dim=-2)
    whole = torch.cat((*front.unbind(), *back.flip(0).unbind()), dim=-2)
    first, second = torch.split(whole, [key.shape[-1], value.shape[-1]], dim=-1)
    return first, second


class _Gather(torch.autograd.Function):
    """The tensors of all ranks, one above the other; backward adds up what all ranks have for each."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        size = dist.get_world_size(group)
        every = own.new_empty((size * own.shape[0], *own.shape[1:]))
        with record_function(EVENT):
            dist.all_gather_into_tensor(every, own.contiguous(), group=group)
        return every.view(size, *own.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (every,) = gradients
        own = every.new_empty(every.shape[1:])
        with record_function(EVENT):
            dist.reduce_scatter_tensor(own, every.flatten(0, 1).contiguous(), group=ctx.group)
        return own, None
