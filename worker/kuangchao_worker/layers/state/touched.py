"""What a step has touched on this rank, by name: parameters that had a gradient, and buffers that were written to.

Where ranks see other samples they may use other parameters, and count other things in buffers. What all do about it
follows from what any of them has touched, so they say it to one another; who asks and who acts is `ShardedStore`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from kuangchao_worker.layers.state.entries import local


class Touched:
    """Of a whole model's names which this rank touches. `watch` what is left of it here, once it is split."""

    def __init__(self, module: nn.Module) -> None:
        self._parameters = [name for name, _ in module.named_parameters()]
        self._buffers = [name for name, _ in module.named_buffers()]
        self._used, self.watched = set[str](), set[str]()
        self._waiting: dict[nn.Module, Callable[[], None]] = {}
        self._here: dict[str, torch.Tensor] = {}
        self._versions: dict[str, int] = {}

    def watch(self, part: nn.Module, inside: str = "") -> None:
        """Notice gradients of the parameters of this part's units, in which torch puts zeros where there is none.

        Names in the part begin with `inside`, which those of the model do not.
        """
        for name, unit in part.named_modules():
            if isinstance(unit, FSDPModule):
                unit.set_reduce_scatter_unused_params(True, recurse=False)
                self._when_whole(part.get_submodule(name), f"{name}." if name else "", inside)

    def _when_whole(self, unit: nn.Module, prefix: str, inside: str) -> None:
        """Parameters that get gradients are there from the unit's first forward pass on, and stay the same ones."""

        def begun(*_: Any) -> None:
            handle.remove()
            del self._waiting[unit]
            for own, parameter in unit.named_parameters():
                name = f"{prefix}{own}".removeprefix(inside)
                if parameter.requires_grad and name not in self.watched and not _in_pieces(parameter, name, held):
                    self.watched.add(name)
                    self._mark(parameter, name)

        held = {f"{prefix}{own}".removeprefix(inside): id(p) for own, p in unit.named_parameters()}
        self._waiting[unit] = begun
        handle = unit.register_forward_pre_hook(begun)

    def meet(self, unit: nn.Module) -> None:
        """The unit's parameters are whole, without a forward pass of its own."""
        if begun := self._waiting.get(unit):
            begun()

    def _mark(self, parameter: nn.Parameter, name: str) -> None:
        def used(gradient: torch.Tensor | None) -> None:
            if gradient is not None:
                self._used.add(name)

        # not once it is added up: under zero bubble torch asks autograd for gradients and adds them up itself
        parameter.register_hook(used)  # type: ignore[no-untyped-call]  # torch

    def keep(self, module: nn.Module) -> None:
        """Notice writes to these buffers from now on."""
        self._here = {name: local(buffer) for name, buffer in module.named_buffers()}
        self._renew()

    def _renew(self) -> None:
        self._versions = {name: buffer._version for name, buffer in self._here.items()}  # noqa: SLF001 - no other name

    def flags(self) -> list[bool]:
        """For each parameter and buffer of the whole model whether it was touched since the last `forget`."""
        written = {name for name, buffer in self._here.items() if buffer._version != self._versions[name]}  # noqa: SLF001
        return [name in self._used for name in self._parameters] + [name in written for name in self._buffers]

    def named(self, flags: Sequence[bool]) -> tuple[set[str], list[str]]:
        """Parameters and buffers that some rank has touched; the latter in the model's order."""
        used = {name for name, flag in zip(self._parameters, flags, strict=False) if flag}
        rest = flags[len(self._parameters) :]
        return used, [name for name, flag in zip(self._buffers, rest, strict=True) if flag]

    def share(self, names: Sequence[str], groups: Sequence[dist.ProcessGroup]) -> None:
        """Give all ranks of the groups the buffers of their first rank, as DDP does. All of them must call."""
        for tensors in _by_kind({name: self._here[name] for name in names if name in self._here}):
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
            for group in groups:
                dist.broadcast(flat, group=group, group_src=0)
            parts = torch.split(flat, [tensor.numel() for tensor in tensors])
            with torch.no_grad():
                for tensor, part in zip(tensors, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))

    def forget(self) -> None:
        """A step is over."""
        self._used.clear()
        self._renew()


def _in_pieces(parameter: nn.Parameter, name: str, held: Mapping[str, int]) -> bool:
    """Whether it is the one that was there before the unit was gathered: another unit's, which is not."""
    return held.get(name) == id(parameter)


def _by_kind(tensors: Mapping[str, torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    for kind in sorted({str(tensor.dtype) for tensor in tensors.values()}):
        yield [tensor for tensor in tensors.values() if str(tensor.dtype) == kind]
