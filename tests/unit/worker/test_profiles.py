"""A task may profile itself at any time: what it sees is whole, whether a step of ours is just being sampled or not."""

import json
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from kuangchao_worker.layers.execution.traffic import FIRST_SECONDS, SAMPLE_SECONDS, TrafficSampler

CPU = [ProfilerActivity.CPU]


class Steps:
    """A sampler of which every step is due."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sampler = TrafficSampler(lambda: self.now)
        self.now += FIRST_SECONDS

    def begin(self) -> bool:
        """Whether the step that begins is sampled."""
        self.now += SAMPLE_SECONDS
        self.sampler.begin()
        return self.sampler._running is not None

    def end(self) -> None:
        self.sampler.end()


def additions(made: profile) -> int:
    return sum(event.count for event in made.key_averages() if event.key == "aten::add")


def add() -> None:
    torch.ones(2) + 1


def test_a_profile_within_a_sampled_step_is_whole_and_the_next_step_is_sampled() -> None:
    steps = Steps()
    steps.sampler.seconds = before = {"data": 1.0}
    assert steps.begin()
    with profile(activities=CPU) as theirs:
        add()
    add()
    steps.end()
    assert additions(theirs) == 1
    assert steps.sampler.seconds is before, "half a step says nothing"
    assert steps.begin()
    steps.end()


def test_a_profile_that_begins_in_a_sampled_step_goes_on_after_it(tmp_path: Path) -> None:
    steps = Steps()
    assert steps.begin()
    theirs = profile(activities=CPU)
    theirs.start()
    add()
    steps.end()
    assert not steps.begin()
    add()
    steps.end()
    theirs.stop()
    assert additions(theirs) == 2
    theirs.export_chrome_trace(str(tmp_path / "trace"))
    assert json.loads((tmp_path / "trace").read_text())["traceEvents"]


def test_a_step_in_which_a_profile_warms_up_is_not_sampled(tmp_path: Path) -> None:
    steps = Steps()
    with profile(activities=CPU, schedule=schedule(wait=1, warmup=1, active=1, repeat=1)) as theirs:
        sampled = []
        for _ in range(4):
            sampled.append(steps.begin())
            add()
            steps.end()
            theirs.step()
        assert sampled == [True, False, False, True]
    assert additions(theirs) == 1
    theirs.export_chrome_trace(str(tmp_path / "trace"))
    assert json.loads((tmp_path / "trace").read_text())["traceEvents"]
