"""The plain loop that the executor is measured against: the same work under torchrun and DDP, nothing else.

Like ours it draws a seeded order, reads the loss and the gradient norm each step, and runs one thread per rank.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.workloads import StepClock, workload


def main() -> None:
    """Arguments: workload, steps, global batch. Rank 0 prints {"stepsPerSecond": x}."""
    name, steps, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    task, clock = workload(name), StepClock()
    module = DistributedDataParallel(task.model())
    optimizer = task.optimizer(module.parameters())
    share, size = batch // world, len(task.dataset)  # type: ignore[arg-type]  # map-style data has a length
    generator = torch.Generator().manual_seed(0)
    order: list[int] = []
    for _ in range(steps):
        while len(order) < batch:
            order += torch.randperm(size, generator=generator).tolist()
        mine, order = order[:batch][rank * share : (rank + 1) * share], order[batch:]
        clock.tick()
        loss = task.loss(module, task.collate([task.dataset[i] for i in mine]))
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no annotation here
        nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None]).item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        mean.item()
    if rank == 0:
        print(json.dumps({"stepsPerSecond": clock.rate()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
