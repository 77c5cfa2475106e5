"""The plain loop that the executor is measured against: the same work under torchrun and torch alone, nothing else.

Like ours it draws a seeded order, takes a batch out of whole tensors, reads the mean loss and the gradient norm each
step, and runs one thread per rank.
"""

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist

from bench import byhand
from bench.layouts import Layout
from bench.turns import Turn
from bench.workloads import workload


def main() -> None:
    """Arguments: workload, layout, steps, global batch, socket and block of the turns."""
    name, layout, socket = sys.argv[1], Layout(sys.argv[2]), sys.argv[5]
    steps, batch, block = int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[6])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    train(name, layout, steps, batch, Turn(socket, "theirs", block))
    dist.barrier()  # a rank that tears its group down while another is still in a collective aborts that one
    dist.destroy_process_group()


def train(name: str, layout: Layout, steps: int, batch: int, turn: Turn) -> None:
    """Train so many steps."""
    task, share = workload(name), dist.get_rank() % layout.replicas
    hand = byhand.made(layout, task)
    optimizer = task.optimizer(hand.module.parameters())
    batches = shares(len(task.dataset), batch, share, layout.replicas)  # type: ignore[arg-type]  # map-style data has a length
    for _ in range(steps):
        data = task.dataset[next(batches)]
        turn.tick()
        loss = hand.backward(data)
        hand.norm()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.clone()
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
