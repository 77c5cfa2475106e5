"""The plain loop that the executor is measured against: the same work under torchrun and torch alone, nothing else.

Like ours it draws a seeded order, takes a batch out of whole tensors, reads the mean loss and the gradient norm each
step, ends where one is no number, runs one thread per rank and deterministic algorithms. Neither side clips. It is what
a careful person writes: it tells its losses every ten steps, and torch does not fill the memory that it hands out.
"""

import json
import math
import os
import sys
from collections.abc import Iterator
from typing import Final

import torch
import torch.distributed as dist

from bench import byhand
from bench.layouts import Layout
from bench.turns import Turn
from bench.workloads import workload

TOLD_EVERY: Final = 10
"""Steps between two lines of the log."""


def main() -> None:
    """Arguments: workload, layout, steps, global batch, socket and block of the turns."""
    name, layout, socket = sys.argv[1], Layout(sys.argv[2]), sys.argv[5]
    steps, batch, block = int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[6])
    torch.set_num_threads(1)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # torch's module class
    torch.use_deterministic_algorithms(True)
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
    for step in range(1, steps + 1):
        data = task.dataset[next(batches)]
        turn.tick()
        loss = hand.backward(data)
        norm = hand.norm()
        if not math.isfinite(norm):
            raise ValueError(f"step {step}: the gradient norm is {norm}")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.clone()
        dist.all_reduce(mean)
        _tell(step, mean.item(), norm)


def _tell(step: int, loss: float, norm: float) -> None:
    """A line of the log now and then, by one rank."""
    if step % TOLD_EVERY == 0 and dist.get_rank() == 0:
        sys.stdout.write(json.dumps({"step": step, "loss": loss, "gradientNorm": norm}) + "\n")
        sys.stdout.flush()


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
    sys.stdout.flush()
    # torch leaves threads behind that nobody joins, and now and then aborts the process for it; ours ends so too
    os._exit(0)
