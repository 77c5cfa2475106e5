"""Figures of a rank: what they count, how seldom they are made, and whose time a collective is."""

import itertools
import os
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from kuangchao_contracts.parallel import StepEstimate
from kuangchao_contracts.plan import TrainingSpec
from kuangchao_worker.layers.execution.meter import Meter, resident
from kuangchao_worker.layers.execution.traffic import FIRST_SECONDS, SAMPLE_SECONDS, Event, TrafficSampler, by_axis
from kuangchao_worker.tasks.mlp import mlp
from tests.unit.worker.fakegate import make_plan
from tests.unit.worker.parts import Loop


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


class Traffic:
    seconds = {"data": 0.25, "pipeline": 0.5}

    def begin(self) -> None: ...

    def end(self) -> None: ...


def test_figures_are_those_of_the_steps_since_the_last_look() -> None:
    clock, memory = Clock(), iter([1_000, 1_500, 900])
    plan = make_plan(2, batch=32, step=StepEstimate(step_us=100_000, compute_us=100_000, mfu_ppm=400_000))
    meter = Meter(
        plan=plan,
        training=TrainingSpec(global_batch=32, sequence_length=128),
        traffic=Traffic(),
        clock=clock,
        memory=lambda: next(memory),
        accelerator=lambda: 77,
        compression=lambda: 4.5,
    )
    assert meter.after_step() == {}, "the first step only starts the clock"
    for _ in range(4):
        clock.now += 0.25
        told = meter.after_step()
    assert told == {
        "stepSeconds": "0.25",
        "samplesPerSecond": "128",
        "tokensPerSecond": "16384",
        "mfu": "0.16",
        "memoryBytes": "1500",
        "memoryGrowthBytes": "500",
        "acceleratorBytes": "77",
        "gradientCompression": "4.5",
        "dataCommunicationSeconds": "0.25",
        "pipelineCommunicationSeconds": "0.5",
    }
    clock.now += 0.5
    assert meter.after_step() is told, "no look within a second"
    clock.now += 0.5
    assert meter.after_step()["stepSeconds"] == "0.5"


def test_what_is_not_known_is_not_told() -> None:
    clock = Clock()
    meter = Meter(plan=make_plan(1), training=TrainingSpec(global_batch=32), clock=clock)
    meter.after_step()
    clock.now += 2
    assert set(meter.after_step()) == {"stepSeconds", "samplesPerSecond", "memoryBytes", "memoryGrowthBytes"}


def test_memory_is_that_of_this_process() -> None:
    before = resident()
    held = os.urandom(64 << 20)
    assert resident() - before > 48 << 20
    del held


@pytest.mark.parametrize(
    ("events", "axes"),
    [
        ((), {}),
        # DDP or FSDP2; what reduces and scatters is an all-reduce for gloo
        ((("c10d::allreduce_", 0, 1), ("gloo:all_reduce", 1, 5)), {"data": 5}),
        ((("c10d::_reduce_scatter_base_", 0, 1), ("gloo:all_reduce", 1, 5)), {"data": 5}),
        # a DTensor's collective calls the plain one
        (
            (("_c10d_functional::all_reduce", 0, 4), ("c10d::allreduce_", 1, 2), ("gloo:all_reduce", 2, 9)),
            {"tensor": 9},
        ),
        (
            (
                ("c10d::_allgather_base_", 0, 1),
                ("_c10d_functional::all_reduce", 2, 4),
                ("c10d::allreduce_", 3, 2),
                ("gloo:all_gather", 4, 30),
                ("gloo:all_reduce", 5, 7),
                ("_c10d_functional::wait_tensor", 8, 4),
                ("c10d::allreduce_", 20, 2),
                ("gloo:all_reduce", 21, 100),
            ),
            {"data": 117, "tensor": 7},
        ),
        # what waits for the same peer at the same time waits once
        ((("gloo:all_reduce", 1, 50), ("gloo:all_reduce", 2, 50), ("gloo:all_reduce", 60, 5)), {"data": 56}),
        # our own says whose it is, and calls the plain one
        (
            (("kuangchao::context", 0, 4), ("c10d::_allgather_base_", 1, 2), ("gloo:all_gather", 2, 6)),
            {"context": 6},
        ),
        (
            (("c10d::send", 0, 1), ("gloo:send", 1, 3), ("c10d::recv_", 2, 1), ("gloo:recv", 3, 4), ("aten::mm", 4, 9)),
            {"pipeline": 6},
        ),
    ],
)
def test_traffic_by_axis(events: tuple[tuple[str, int, int], ...], axes: dict[str, int]) -> None:
    found = by_axis(Event(*event) for event in events)
    assert found == pytest.approx({axis: spent * 1e-9 for axis, spent in axes.items()})


def test_steps_are_sampled_seldom_and_never_against_a_profiler_of_the_task() -> None:
    clock = Clock()
    sampler = TrafficSampler(clock)
    sampled = []

    def step() -> None:
        sampler.begin()
        sampled.append(sampler._running is not None)
        sampler.end()

    step()
    clock.now += FIRST_SECONDS
    step()
    step()
    clock.now += SAMPLE_SECONDS
    with profile(activities=[ProfilerActivity.CPU]) as own:
        step()
        torch.ones(1) + 1
    assert sampled == [False, True, False, False]
    assert any(event.key == "aten::add" for event in own.key_averages())


def test_executor_tells_figures_and_lets_traffic_see_forward_and_backward_only(tmp_path: Path) -> None:
    loop = Loop(tmp_path, mlp({"samples": "64"}), steps=3)
    ticks = itertools.count()

    class Recorded(Traffic):
        def begin(self) -> None:
            loop.calls.append("begin")

        def end(self) -> None:
            loop.calls.append("end")

    spec = loop.assigned.launch
    loop.executor.meter = Meter(
        plan=spec.plan, training=spec.training, traffic=Recorded(), clock=lambda: next(ticks), memory=lambda: 5
    )
    loop.executor.run(None)
    assert loop.calls[:6] == ["begin", "end", "submit_gradients:1", "begin", "end", "submit_gradients:2"]
    told = loop.executor.metrics
    assert (told["stepSeconds"], told["memoryBytes"], told["dataCommunicationSeconds"]) == ("1", "5", "0.25")
    assert {"loss", "gradientNorm"} <= set(told)
