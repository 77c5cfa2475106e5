"""The plain loop that the executor is measured against: the same work under torchrun and DDP, nothing else.

Like ours it draws a seeded order, takes a batch out of whole tensors, reads the mean loss and the gradient norm each
step, and runs one thread per rank.
"""

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.turns import Turn
from bench.workloads import workload


def main() -> None:
    """Arguments: workload, steps, global batch, socket and block of the turns."""
    name, steps, batch, socket, block = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    train(name, steps, batch, Turn(socket, "theirs", block))
    dist.barrier()  # a rank that tears its group down while another is still in a collective aborts that one
    dist.destroy_process_group()


def train(name: str, steps: int, batch: int, turn: Turn) -> None:
    """Train so many steps."""
    task, rank, world = workload(name), dist.get_rank(), dist.get_world_size()
    module = DistributedDataParallel(task.model())
    optimizer = task.optimizer(module.parameters())
    batches = shares(len(task.dataset), batch, rank, world)  # type: ignore[arg-type]  # map-style data has a length
    for _ in range(steps):
        data = task.dataset[next(batches)]
        turn.tick()
        loss = task.loss(module, data)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no annotation here
        nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None]).item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        mean.item()


def shares(size: int, batch: int, rank: int, world: int) -> Iterator[torch.Tensor]:
    """A rank's sample indices of step after step, over endless seeded epochs."""
    generator, share = torch.Generator().manual_seed(0), batch // world
    order = torch.empty(0, dtype=torch.int64)
    while True:
        while len(order) < batch:
            order = torch.cat((order, torch.randperm(size, generator=generator)))
        yield order[rank * share : (rank + 1) * share]
        order = order[batch:]


if __name__ == "__main__":
    main()
