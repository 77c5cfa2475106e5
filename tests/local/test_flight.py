"""A rank holds the activations of as many micro-batches as the planner counts under a schedule, and no longer."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_operator.layers.strategy.footprint.schedules import in_flight
from kuangchao_worker.layers.execution.pipe import PipeRunner
from kuangchao_worker.layers.state.chain import stages_on
from kuangchao_worker.rank.runnable import CHUNKS
from tests.local.gang import Gang, Seat, built
from tests.local.training import split

PIPELINE, COUNT = 4, 8


class Flight:
    """Which passes forward have left something for a backward pass that still is there."""

    def __init__(self) -> None:
        self.now: int | None = None
        self.begun = self.most = 0
        self.left: Counter[int] = Counter()

    def watch(self, stage: nn.Module) -> nn.Module:
        """Note what the stage saves."""
        stage.register_forward_pre_hook(lambda *_: self._enter())
        stage.register_forward_hook(lambda *_: setattr(self, "now", None))
        return stage

    def _enter(self) -> None:
        self.begun += 1
        self.now = self.begun

    def saved(self, tensor: torch.Tensor) -> "Saved":
        """As torch asks of what packs a saved tensor."""
        return Saved(self, tensor)


class Saved:
    """A saved tensor, until nobody needs it."""

    def __init__(self, flight: Flight, tensor: torch.Tensor) -> None:
        # with its graph, what a node saves of its own result would keep that node
        self.tensor, self._flight, self._of = tensor.detach(), flight, flight.now
        if self._of is not None:
            flight.left[self._of] += 1
            flight.most = max(flight.most, len(flight.left))

    def __del__(self) -> None:
        if self._of is not None:
            left = self._flight.left
            left[self._of] -= 1
            if not left[self._of]:
                del left[self._of]


def piece() -> nn.Module:
    """Layers that end with a view of what they compute."""
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Unflatten(1, (2, 2)), nn.Flatten())


def _most(seat: Seat, mesh: DeviceMesh, plan: ParallelPlan) -> int:
    flight = Flight()
    stages = {number: flight.watch(piece()) for number in stages_on(plan, mesh.get_local_rank("pipeline"))}
    runner = PipeRunner(stages, mesh, plan, torch.device("cpu"))
    inputs = [torch.ones(1, 4) for _ in range(COUNT)]
    with torch.autograd.graph.saved_tensors_hooks(flight.saved, lambda saved: saved.tensor):
        runner.step(inputs, lambda output, _: output.square().mean())
    assert not flight.left
    return flight.most


def _case(seat: Seat, plan: ParallelPlan) -> int:
    return int(built(seat, plan, _most))


@pytest.mark.parametrize("schedule", CHUNKS)
def test_activations_are_there_as_long_as_the_planner_counts(gang: Gang, schedule: Schedule) -> None:
    chunks = CHUNKS[schedule][0]
    plan = split(batch=COUNT, accumulation=COUNT, pipeline=PIPELINE, virtual_stages=chunks, schedule=schedule)
    counted = [sum(in_flight(schedule, stage, PIPELINE, chunks, COUNT)) for stage in range(PIPELINE)]
    assert gang.run(PIPELINE, _case, plan) == counted
