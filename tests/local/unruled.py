"""Models as people write them, whose tasks say nothing of how they may be split."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from kuangchao_worker.tasks import Task

VOCABULARY, TOKENS, WIDTH = 48, 8, 32


class Attention(nn.Module):
    """Grouped queries: four heads on two of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.kv = nn.ModuleList(nn.Linear(WIDTH, WIDTH // 2) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = (self.q(x), *(part(x) for part in self.kv))
        query, key, value = (part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in made)
        query = functional.rms_norm(query, (8,))
        key, value = (part.repeat_interleave(2, dim=1) for part in (key, value))
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o(found.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Before each half a norm, around it the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.gate, self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.one(x))
        inner = self.two(x)
        return x + self.down(functional.silu(self.gate(inner)) * self.up(inner))


class Entry(nn.Module):
    """Tokens and their places."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens) + self.places(torch.arange(tokens.shape[1]))


class Body(nn.Module):
    """All but the head."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.norm = Entry(), nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.entry(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.norm(hidden)


class Decoder(nn.Module):
    """The body is a module of its own, as in Hugging Face's."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Body(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(tokens))


def decoder(args: dict[str, str]) -> Task:
    """Predict the next of repeating numbers."""
    del args
    starts = torch.arange(96)[:, None]
    tokens = (starts + torch.arange(TOKENS + 1) * (starts % 5 + 1)) % VOCABULARY

    def loss(module: nn.Module, batch: Any) -> torch.Tensor:
        given, wanted = batch
        return functional.cross_entropy(module(given).flatten(0, 1), wanted.flatten())

    return Task(
        model=Decoder,
        dataset=TensorDataset(tokens[:, :-1], tokens[:, 1:]),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    )
