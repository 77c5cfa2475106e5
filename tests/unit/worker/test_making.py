"""First weights made in parts: on each rank the bits that one process makes, and not the memory."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from kuangchao_worker.layers.state import rng
from kuangchao_worker.layers.state.making import make_share, makers
from kuangchao_worker.tasks.mlp import mlp
from kuangchao_worker.tasks.text import moe, transformer

SMALL = {"layers": "2", "hidden": "64", "heads": "4", "kvHeads": "2", "ffn": "64", "sequence": "16", "windows": "8"}
RANKS = 3


def seed() -> None:
    rng.seed_all(3)


class Mixed(nn.Module):
    """What models do when they are made: copies of layers, weights from others, buffers, a table, shared weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.square = nn.Linear(64, 64), nn.Linear(64, 64)
        nn.init.orthogonal_(self.square.weight)
        self.copied = nn.Linear(64, 64, bias=False)
        with torch.no_grad():
            self.copied.weight.copy_(self.first.weight.T)
        layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.memory, self.image = nn.BatchNorm1d(2_000), nn.LSTM(32, 32), nn.Conv2d(8, 16, 7)
        self.register_buffer("drawn", torch.randn(3_000), persistent=False)
        self.table = torch.arange(5_000) * 2.0
        self.words, self.precise = nn.Embedding(100, 64, padding_idx=3), nn.Linear(64, 64).double()
        self.back = nn.Linear(64, 100)
        self.back.weight = self.words.weight


MODELS: dict[str, tuple[Callable[[], nn.Module], float]] = {
    "transformer": (transformer(SMALL).model, 0.99),
    "in fp64": (lambda: transformer(SMALL).model().double(), 0.99),
    "experts": (moe(SMALL).model, 0.99),
    "perceptron": (mlp({"hidden": "128"}).model, 0.8),
    "all kinds": (Mixed, 0.8),
}
"""With the least part of the bytes that is made by one rank alone."""


def tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: t.detach() for name, t in (*module.named_parameters(), *module.named_buffers())}


def size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@pytest.mark.parametrize(("model", "part"), MODELS.values(), ids=MODELS)
def test_parts_have_the_bits_of_the_whole(model: Callable[[], nn.Module], part: float) -> None:
    seed()
    alone, after = tensors(model()), torch.rand(1)
    found: dict[str, torch.Tensor] = {}
    for rank in range(RANKS):
        module, share = make_share(model, seed, rank, RANKS)
        assert share is not None and torch.equal(torch.rand(1), after), "the same numbers were drawn"
        made = tensors(module)
        assert made.keys() == alone.keys()
        for name, tensor in made.items():
            if share.makers.get(name, rank) == rank:
                assert torch.equal(tensor, alone[name]), name
        assert not found.keys() & share.own.keys()
        found |= share.own
        assert not isinstance(module, Mixed) or torch.equal(module.table, torch.arange(5_000) * 2.0)
    assert sum(map(size, found.values())) >= part * sum(map(size, alone.values()))


def test_a_rank_has_memory_for_its_share_and_one_parameter() -> None:
    model = mlp({"hidden": "128", "layers": "12"}).model
    whole = sum(map(size, model().parameters()))
    for rank in range(RANKS):
        module, share = make_share(model, seed, rank, RANKS)
        assert share is not None
        start, end = share.room.ctypes.data, share.room.ctypes.data + len(share.room)
        own = sum(size(p) for p in module.parameters() if not start <= p.data_ptr() < end)
        assert own + len(share.room) < whole / RANKS + 128 * 128 * 4 * 2


class Looks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.scale = self.layer.weight.norm().item()


class Arrays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.other = nn.Parameter(torch.from_numpy(self.layer.weight.detach().numpy().copy()))


class Rejects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        nn.init.trunc_normal_(self.layer.weight)


class Once:
    """Makes something more the first time."""

    again = False

    def __call__(self) -> nn.Module:
        if not self.again:
            torch.zeros(3)
        self.again = True
        return nn.Linear(64, 64)


@pytest.mark.parametrize(
    ("model", "why"),
    [(Looks, "looks at weights"), (Arrays, "looks at weights"), (Rejects, "looks at weights"), (Once(), "are others")],
    ids=["a norm", "arrays", "draws until it fits", "not alike twice"],
)
def test_what_cannot_be_made_in_parts_is_made_whole(
    model: Callable[[], nn.Module], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    module, share = make_share(model, seed, 1, RANKS)
    assert share is None and why in caplog.text
    seed()
    for name, tensor in tensors(model()).items():
        assert torch.equal(tensors(module)[name], tensor)


def test_who_makes_what_is_even_and_the_same_for_all() -> None:
    found = makers({"a": 8, "b": 4, "c": 4, "d": 8, "e": 1}, 2)
    assert found == {"a": 0, "b": 1, "c": 1, "d": 0, "e": 1}
