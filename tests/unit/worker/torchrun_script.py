"""A script as people have it: it knows torchrun's environment and a folder of its own, nothing of Kuangchao."""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--local-rank", type=int)
    parser.add_argument("--fail-fresh-at", type=int, help="stop with an error after this step, if nothing was resumed")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    assert options.local_rank == int(os.environ["LOCAL_RANK"])
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saved, first = options.output / "last.pt", 1
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        first = state["step"] + 1
    dist.barrier()
    wrapped = DistributedDataParallel(model)
    for step in range(first, options.steps + 1):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step * 100 + rank))
        loss = (wrapped(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            torch.save({"model": model.state_dict(), "step": step}, saved)
        dist.barrier()
        if first == 1 and step == options.fail_fresh_at:
            raise RuntimeError("planted")
    weights = [torch.zeros(4) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, model.weight.detach()[0])
    if rank == 0:
        same = all(torch.equal(weights[0], other) for other in weights)
        (options.output / "result.json").write_text(json.dumps({"first": first, "same": same}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
