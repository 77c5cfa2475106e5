"""Gives the first weights that a rank has made to the ranks that train them, once the model is split."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from kuangchao_worker.layers.state.entries import local, piece_of
from kuangchao_worker.layers.state.pieces import whole, within


@dataclass
class Share:
    """What a rank has made of a model: whole parameters, by name. `room` is the memory in which those of others lie."""

    rank: int
    makers: Mapping[str, int]
    own: dict[str, torch.Tensor]
    kinds: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    room: Any

    @torch.no_grad()
    def hand_out(self, module: nn.Module) -> None:
        """Fill the pieces of a split module, whole parameter after whole parameter. All ranks must call."""
        held = dict(module.named_parameters())
        for parameter in held.values():
            self._out_of_room(parameter)
        for name, maker in self.makers.items():
            given = self.own.pop(name) if maker == self.rank else self._in_room(*self.kinds[name])
            dist.broadcast(given, src=maker)
            if name in held:
                local(held[name]).copy_(given[within(whole(given.shape), piece_of(held[name]))])

    def _in_room(self, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
        """Where a parameter of others comes in: the room is free by then, and large enough for each of them."""
        return torch.from_numpy(self.room[: prod(shape) * kind.itemsize]).view(kind).view(shape)

    def _out_of_room(self, parameter: nn.Parameter) -> None:
        """Give a parameter that was not split memory of its own."""
        piece = local(parameter)
        start = self.room.ctypes.data
        if not start <= piece.data_ptr() < start + len(self.room):
            return
        if isinstance(parameter, DTensor):
            parameter._local_tensor = torch.empty_like(piece)  # noqa: SLF001 - DTensor has no other way
        else:
            parameter.data = torch.empty_like(piece)
