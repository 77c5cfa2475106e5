"""A script as people start it with torchrun; it knows of Kuangchao only through the optional `report`.

`command: ["-m", "kuangchao_worker.tasks.torchrun_example", "--steps", "20"]`
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from kuangchao_worker import report
from kuangchao_worker.tasks.mlp import mlp


def main() -> None:
    """Train a small model over all processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    task = mlp({})
    module = DistributedDataParallel(task.model())
    optimizer = task.optimizer(module.parameters())
    inputs, targets = next(iter(torch.utils.data.DataLoader(task.dataset, batch_size=32)))
    loss = torch.zeros(())
    for step in range(1, steps + 1):
        loss = task.loss(module, (inputs, targets))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no annotation here
        optimizer.step()
        report.progress(step, steps, loss=loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
