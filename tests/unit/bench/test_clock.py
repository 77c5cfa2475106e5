"""The clock inside the training loop, and the order of samples of the loop that we are compared with."""

import itertools

import pytest
import torch
from bench.torchrun_loop import shares
from bench.workloads import WARM_UP, StepClock


def test_the_rate_is_steps_between_first_and_last_tick_after_the_warm_up() -> None:
    slow_then_fast = [*(float(n) for n in range(WARM_UP)), 100.0, 100.5, 101.0, 102.0]
    times, cpu = iter(slow_then_fast), itertools.count(0.0, 0.25)
    clock = StepClock(lambda: next(times), lambda: next(cpu))
    for _ in slow_then_fast:
        clock.tick()
    assert clock.measured() == {
        "stepsPerSecond": pytest.approx(1.5),
        "cpuSecondsPerStep": pytest.approx(0.25),
        "ticks": WARM_UP + 4,
    }


def test_ranks_share_each_batch_and_every_sample_comes_once_in_an_epoch() -> None:
    ranks = [shares(12, 4, rank, 2) for rank in range(2)]
    steps = [torch.cat([next(rank) for rank in ranks]) for _ in range(6)]
    epochs = torch.cat(steps).view(2, 12)
    assert [sorted(epoch.tolist()) for epoch in epochs] == [list(range(12))] * 2
    assert epochs[0].tolist() != epochs[1].tolist()


def test_an_epoch_that_is_no_multiple_of_the_batch_goes_on_in_the_next() -> None:
    stream = shares(5, 4, 0, 1)
    assert sorted(torch.cat([next(stream) for _ in range(5)]).tolist()) == sorted(list(range(5)) * 4)
