"""Whether ranks have the same of something. All ranks of the group must ask."""

from collections.abc import Sequence

import torch
import torch.distributed as dist


def others(mine: Sequence[bytes], device: torch.device) -> list[list[int]]:
    """For each of these digests, of one length, the ranks that have not what rank 0 has."""
    world, own = dist.get_world_size(), torch.tensor(list(b"".join(mine)), dtype=torch.uint8)
    every = torch.empty(world * len(own), dtype=torch.uint8, device=device)
    dist.all_gather_into_tensor(every, own.to(device))
    columns = every.view(world, len(mine), -1).unbind(1)
    return [[rank for rank in range(world) if not torch.equal(column[rank], column[0])] for column in columns]


def near(values: torch.Tensor, rtol: float, atol: float, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """For each number, whether all ranks of the group have it, up to rounding. NaN is like NaN."""
    least, most = values.clone(), values.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN, group)
    dist.all_reduce(most, dist.ReduceOp.MAX, group)
    return torch.isclose(least, most, rtol=rtol, atol=atol, equal_nan=True)
