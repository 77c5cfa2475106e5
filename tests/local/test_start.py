"""What a rank holds at most until it can train: near its share of the model, where the plan splits it."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kuangchao_contracts.plan import ParallelPlan, Sharding
from kuangchao_worker.rank.wiring import make_parameters
from kuangchao_worker.tasks import load_task
from tests.local.gang import Gang, Seat, built
from tests.local.training import CPU, split

ARGS = {"hidden": "1024", "layers": "15", "dropout": "0"}
WHOLE = 14 * 4
"""MiB of the matrices between the ends of that perceptron, 4 each."""
PLANS = {"sharded": split(data=4, sharding=Sharding.FULL), "pipeline": split(pipeline=4, accumulation=4)}


def memory(name: str) -> float:
    """MiB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) / 1024


def grown(act: Callable[[], Any]) -> float:
    """MiB that something takes at most."""
    gc.collect()  # what cases before left in cycles is given back now, not in the middle of this one
    ctypes.CDLL(None).malloc_trim(0)  # and is no longer there to be used
    Path("/proc/self/clear_refs").write_text("5")  # and the peak is that from now on
    before = memory("VmRSS")
    act()
    return memory("VmHWM") - before


def _started(seat: Seat, mesh: Any, plan: ParallelPlan) -> tuple[float, float]:
    # as a rank has it (`prepare`)
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    small, task = (load_task("kuangchao_worker.tasks.mlp:mlp", {**ARGS, **more}) for more in ({"hidden": "64"}, {}))
    # what is imported and kept by torch at the first time is none of it
    make_parameters(small, CPU, 0, plan, rank=seat.rank).connect(mesh)
    found = grown(lambda: make_parameters(task, CPU, 0, plan, rank=seat.rank).connect(mesh))
    whole = grown(lambda: make_parameters(task, CPU, 0, plan))
    monkeypatch.undo()
    return found, whole


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_start_takes_about_a_share_and_not_the_whole(gang: Gang, plan: ParallelPlan) -> None:
    """A share as it is made and a share as it is trained, and two matrices on their way."""
    found = gang.run(4, built, plan, _started)
    assert all(share < WHOLE * 2 / 4 + 14 < 0.9 * WHOLE < whole for share, whole in found), found
