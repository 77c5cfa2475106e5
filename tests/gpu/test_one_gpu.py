"""`make gpu-check`: what one GPU can show, which is one rank over NCCL. Not part of any other tier.

NCCL refuses two ranks on one GPU, so plans that divide a model are not tried here; on the CPU they are (tests/local).
"""

import os
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from kuangchao_contracts.plan import Recompute
from kuangchao_operator.layers.strategy.fit.reading import runs_of
from kuangchao_operator.layers.strategy.fit.runs import estimate
from kuangchao_operator.layers.strategy.footprint import shipped
from tests.local import training
from tests.local.gang import Gang, Seat
from tests.local.training import Job, Trained, split

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU on this machine")

MOE = "kuangchao_worker.tasks.text:moe"
MLP = "kuangchao_worker.tasks.mlp:mlp"
SIZES = {"layers": "8", "hidden": "1024", "heads": "16", "kvHeads": "16", "ffn": "4096", "sequence": "512"}
LARGE = Job(split(batch=16, accumulation=2), args=SIZES, steps=100, double=False)
TOKENS = 16 * 512
RUN = (
    "id,layers,hidden,heads,kv_heads,ffn,vocab,seq,mbs,gbs,precision,figure,peak_mem_gib\n"
    "one,8,1024,16,16,4096,256,512,8,16,fp32,allocated,1\n"
)
"""The same run as `kuangchao calibrate` writes it, for the planner's estimate; its peak is not read."""


class Measured(NamedTuple):
    """A run on the GPU."""

    trained: Trained
    backend: str
    peak: int
    """Bytes that torch's allocator has given out at most."""


@pytest.fixture(scope="module")
def gang() -> Iterator[Gang]:
    pool = Gang()
    yield pool
    pool.close()


def prepare() -> torch.device:
    """As a rank's wiring does on a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


def on_gpu(seat: Seat, job: Job) -> Measured:
    """Train as in tests/local, with the model on the GPU and the group over NCCL."""
    device, backends = prepare(), list[str]()
    agree = training.Agreement

    def noting(*given: Any) -> Any:
        backends.append(dist.get_backend())
        return agree(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "CPU", device)
        patch.setattr(training, "Agreement", noting)
        torch.cuda.reset_peak_memory_stats()
        trained = training._train(seat, job)
    weights = {name: tensor.cpu() for name, tensor in trained.weights.items()}
    return Measured(
        Trained(trained.losses, trained.norms, trained.metrics, weights, trained.operations),
        backends[0],
        torch.cuda.max_memory_allocated(),
    )


def on_cpu(seat: Seat, job: Job) -> Trained:
    """The same over gloo."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        return training._train(seat, job)


def by_hand(seat: Seat, job: Job) -> float:
    """Seconds of a step of a plain loop over the same task, model and micro-batches."""
    del seat
    device, task, plan = prepare(), job.made(), job.plan
    module = task.model().to(device)
    optimizer = task.optimizer(module.parameters())
    marks = []
    for step in range(job.steps):
        for part in range(plan.accumulation_steps):
            first = (step * plan.accumulation_steps + part) * plan.micro_batch
            places = torch.arange(first, first + plan.micro_batch) % len(task.dataset)  # type: ignore[arg-type]
            batch = [tensor.to(device) for tensor in task.dataset[places]]
            loss = task.loss(module, batch) / plan.accumulation_steps
            loss.backward()  # type: ignore[no-untyped-call]
            loss.item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        marks.append(time.perf_counter())
    middle = len(marks) // 2
    return (marks[-1] - marks[middle]) / (len(marks) - 1 - middle)


CASES: dict[str, Job] = {
    "decoder": Job(split()),
    "decoder, accumulated": Job(split(accumulation=4)),
    "decoder, recomputed": Job(split(accumulation=2, recompute=Recompute.FULL)),
    "experts": Job(split(), MOE),
    "mlp": Job(split(), MLP, {"dropout": "0"}),
}


@pytest.mark.parametrize("job", CASES.values(), ids=CASES)
def test_one_rank_over_nccl_trains_as_on_the_cpu(gang: Gang, job: Job) -> None:
    (found,), (expected,) = gang.run(1, on_gpu, job), gang.run(1, on_cpu, job)
    assert found.backend == "nccl"
    assert found.trained.losses == pytest.approx(expected.losses, rel=1e-9)
    for name, weights in expected.weights.items():
        torch.testing.assert_close(found.trained.weights[name], weights, rtol=1e-9, atol=1e-9)


def test_the_same_run_twice_has_the_same_bits(gang: Gang) -> None:
    job = Job(split(), args={**training.SMALL, "dropout": "0.2"}, double=False)
    first, second = (gang.run(1, on_gpu, job)[0].trained for _ in range(2))
    assert first.losses == second.losses
    assert all(torch.equal(second.weights[name], weights) for name, weights in first.weights.items())


def test_peak_and_speed_are_told(gang: Gang, capsys: pytest.CaptureFixture[str]) -> None:
    """Peak against the planner, tokens a second against plain torch, by turns. For people; no limit but sense."""
    (run,), calibration = runs_of(RUN), shipped.load()
    planned = estimate(run, calibration)
    ratios, peak = [], 0
    for _ in range(3):
        (found,) = gang.run(1, on_gpu, LARGE)
        (theirs,) = gang.run(1, by_hand, LARGE)
        ours = float(found.trained.metrics["stepSeconds"])
        ratios.append((theirs / ours, TOKENS / ours, TOKENS / theirs))
        peak = max(peak, found.peak)
    ratio, mine, plain = sorted(ratios)[1]
    told = (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}",
        f"peak {peak / 2**20:.0f} MiB, planned {planned / 2**20:.0f} MiB, ratio {peak / planned:.3f}",
        f"{mine:.0f} tokens/s, plain torch {plain:.0f}, ratio {ratio:.3f}",
    )
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(told) + "\n")
    assert planned / 2 < peak < planned * 2
