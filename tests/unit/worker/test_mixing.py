"""Weights without a style that meet what tensor ranks share are named, in a model and in a stage of a pipeline."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore  # torch.distributed.HashStore, as type checkers know it
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker.layers.state.calling import Calling
from kuangchao_worker.layers.state.chain import Stage


class Adapted(nn.Module):
    """A layer with a small one beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.lora = nn.Identity(), nn.ModuleList([nn.Linear(4, 2), nn.Linear(2, 4)])

    def forward(self, given: Any) -> Any:
        found = given
        for layer in self.lora:
            found = layer(found)
        return self.base(given) + found


@pytest.fixture
def shared() -> Iterator[DTensor]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield DTensor.from_local(torch.ones(2, 4), init_device_mesh("cpu", (1,)), [Replicate()])
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "run",
    [lambda model, given: Calling(model)(lambda module, x: module(x), given), lambda model, x: Stage(model, ["0"])(x)],
    ids=["whole", "stage"],
)
def test_a_weight_without_style_is_named(shared: DTensor, run: Callable[[nn.Module, Any], Any]) -> None:
    with pytest.raises(
        InvalidInputError, match=r"task\.rules\.tensor='0\.lora\.0': has no style.*plan\.sequence false"
    ):
        run(nn.Sequential(Adapted()), shared)
    assert run(nn.Sequential(Adapted()), torch.ones(2, 4)).shape == (2, 4)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Calling(nn.Linear(3, 3))(lambda module, given: module(given), torch.ones(2, 4))
