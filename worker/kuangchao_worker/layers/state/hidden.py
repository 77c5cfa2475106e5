"""Gradients that torch's DDP cannot reduce on their way back, since their layers are not in the graph of the loss.

`torch.utils.checkpoint` with `use_reentrant=True` computes layers once more in a backward pass of its own, and until
then only itself is in the graph: DDP takes the layers for unused, and ends where their gradients come all the same.
Where a first loss shows such a checkpoint, gradients are added up after the backward pass, all at once.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import Node

from kuangchao_contracts.errors import InvalidInputError

HIDING: Final = "CheckpointFunctionBackward"
"""What torch calls it in a graph, and DeepSpeed, Megatron and FairScale theirs."""
BUCKET_BYTES: Final = 25 << 20
"""Of gradients that are sent at a time: DDP's own."""
TWICE: Final = "mark a variable ready only once"


def hides(loss: torch.Tensor) -> bool:
    """Whether layers are hidden in the graph of a loss."""
    seen: set[Node | None] = {loss.grad_fn}
    due = [loss.grad_fn]
    while due:
        node = due.pop()
        if node is None:
            continue
        if node.name() == HIDING:
            return True
        after = [following for following, _ in node.next_functions if following not in seen]
        seen.update(after)
        due += after
    return False


def any_hides(*, mine: bool, device: torch.device) -> bool:
    """Whether the losses of some rank hide layers: all must add up in one way. All of them must call."""
    flag = torch.tensor([mine], dtype=torch.int32, device=device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag.item())


def refused(why: str) -> InvalidInputError:
    """For layers that are hidden where they cannot be."""
    return InvalidInputError("task.model", "torch.utils.checkpoint", why, "use_reentrant=False")


def add_up(parameters: Sequence[nn.Parameter]) -> None:
    """Make gradients the mean of those of all ranks. What no rank has used keeps none. All of them must call.

    Sums are those of one layout, that of the parameters' order, so a restarted run has the same bits.
    """
    flags = [parameter.grad is not None for parameter in parameters]
    used = torch.tensor(flags, dtype=torch.int32, device=parameters[0].device)
    dist.all_reduce(used)
    world = dist.get_world_size()
    for bucket in _buckets([p for p, count in zip(parameters, used.tolist(), strict=True) if count]):
        gradients = [_gradient(parameter) for parameter in bucket]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).mul_(1 / world)
        dist.all_reduce(flat)
        sums = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, mean in zip(gradients, sums, strict=True):
            gradient.copy_(mean.view_as(gradient))


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    if parameter.grad.layout is not torch.strided:
        raise refused("with use_reentrant=True, beside layers whose gradients are sparse, is not added up over ranks")
    return parameter.grad


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """In their order, of one type each."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if bucket and (size >= BUCKET_BYTES or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel() * parameter.element_size()
    if bucket:
        yield bucket
