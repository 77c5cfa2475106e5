"""The decoder that the text tasks train: a plain module that knows no ranks.

Sizes of heads are taken from the tensors at hand, so attention works on whatever share of the heads it is given.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker.parallel import attention, mixture, positions

BYTES: Final = 256
ROTARY_BASE: Final = 10_000.0
EPSILON: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a decoder; `experts` 0: a plain ffn."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    experts: int = 0
    per_token: int = 0
    dropout: float = 0.0

    def check(self) -> None:
        """Raise InvalidInputError for sizes that do not go together."""
        if self.hidden % (2 * self.heads):
            raise InvalidInputError("taskArgs.hidden", self.hidden, "heads must be of even width", 2 * self.heads)
        if self.heads % self.kv_heads:
            raise InvalidInputError("taskArgs.kvHeads", self.kv_heads, f"must divide the {self.heads} heads", 1)
        if self.per_token > self.experts:
            raise InvalidInputError("taskArgs.perToken", self.per_token, "is more than there are", self.experts)


class Decoder(nn.Module):
    """Tokens of shape (batch, sequence) to logits of shape (batch, sequence, 256)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, sizes.hidden)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = Norm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, BYTES, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the token that follows each."""
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


class Block(nn.Module):
    """Attention and ffn, each on what its norm gives and added to what came in."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm = Norm(sizes.hidden)
        self.attention = Attention(sizes)
        self.ffn_norm = Norm(sizes.hidden)
        self.ffn = Mixture(sizes) if sizes.experts else FeedForward(sizes.hidden, sizes.ffn)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shape (batch, sequence, hidden) in and out."""
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden)))
        out: torch.Tensor = hidden + self.dropout(self.ffn(self.ffn_norm(hidden)))
        return out


class Norm(nn.Module):
    """Root mean square normalisation (Zhang and Sennrich 2019, equation 4)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Each token by its own root mean square."""
        scale = torch.rsqrt(hidden.pow(2).mean(dim=-1, keepdim=True) + EPSILON)
        return hidden * scale * self.weight


class Attention(nn.Module):
    """Causal attention with rotary positions and grouped queries."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.width = sizes.hidden // sizes.heads
        self.query = nn.Linear(sizes.hidden, sizes.heads * self.width, bias=False)
        self.key = nn.Linear(sizes.hidden, sizes.kv_heads * self.width, bias=False)
        self.value = nn.Linear(sizes.hidden, sizes.kv_heads * self.width, bias=False)
        self.output = nn.Linear(sizes.heads * self.width, sizes.hidden, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shape (batch, sequence, hidden) in and out."""
        query, key, value = (self._heads(part(hidden)) for part in (self.query, self.key, self.value))
        turn = rotation(positions(query.shape[-2], query.device), self.width, query)
        mixed = attention(rotate(query, turn), rotate(key, turn), value)
        out: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        """(batch, sequence, heads * width) to (batch, heads, sequence, width)."""
        return projected.view(*projected.shape[:-1], -1, self.width).transpose(1, 2)


def rotation(at: torch.Tensor, width: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of the angles at the positions, of shape (tokens, width / 2) (Su et al. 2021, equation 15)."""
    rates = ROTARY_BASE ** (-torch.arange(0, width, 2, dtype=like.dtype, device=like.device) / width)
    angles = torch.outer(at.to(like.dtype), rates)
    return angles.cos(), angles.sin()


def rotate(heads: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn each pair of numbers (first half, second half) by its angle."""
    cosine, sine = turn
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


class FeedForward(nn.Module):
    """Gated ffn (SwiGLU, Shazeer 2020)."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shape (..., hidden) in and out."""
        out: torch.Tensor = self.down(nn.functional.silu(self.gate(hidden)) * self.up(hidden))
        return out


class Mixture(nn.Module):
    """Each token goes to its `per_token` best experts, weighted by their share of the router's softmax."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.per_token = sizes.per_token
        self.router = nn.Linear(sizes.hidden, sizes.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(sizes.hidden, sizes.ffn) for _ in range(sizes.experts))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shape (batch, sequence, hidden) in and out."""
        tokens = hidden.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(dim=-1).topk(self.per_token, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return mixture(self.experts, tokens, weights, chosen).view_as(hidden)
