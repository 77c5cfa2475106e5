"""What a snapshot of the weights takes while training goes on and somebody reads one all the time."""

from typing import Any, Final

import psutil

from bench.figures import Bound, Figure
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.oplogfile import Pinned
from kuangchao_contracts.ports.state import SubmitGradients
from kuangchao_worker.layers.state.files import ShardWriter
from kuangchao_worker.layers.state.parameters import ParameterStore
from kuangchao_worker.layers.state.service import StateService
from kuangchao_worker.tasks.mlp import mlp

MOST: Final = 1.1
"""Parameters' bytes that a snapshot may take beside them."""
CAPABILITY: Final = Capability.model_construct()  # type: ignore[call-arg]  # nothing is asked of it
STEPS: Final = 12
"""Long enough for a second snapshot after the first."""


def figures(quick: bool = False) -> list[Figure]:
    """By how much memory at its most grows with a reader in each step, over the bytes of the parameters."""
    grown, parameters = _grown({"hidden": "256" if quick else "1024", "layers": "40"})
    note = f"{grown / 2**20:.1f} of {parameters / 2**20:.1f} MiB"
    return [Figure("worker", "snapshot / parameters", round(grown / parameters, 3), "", Bound.AT_MOST, MOST, note)]


def _grown(args: dict[str, str]) -> tuple[int, int]:
    task = mlp(args)
    module = task.model()
    writer = ShardWriter(0, lambda *_: None)
    state = StateService(ParameterStore(module, task.optimizer(module.parameters()), None), 0, 0, writer, _unpinned)
    batch: Any = task.dataset[:8]

    process, peaks = psutil.Process(), [0, 0]

    def step(number: int, turn: int) -> None:
        task.loss(module, batch).backward()  # type: ignore[no-untyped-call]  # torch
        # with all gradients there: a step has no more at any time
        peaks[turn] = max(peaks[turn], process.memory_info().rss)
        state.submit_gradients(CAPABILITY, SubmitGradients(step_id=number))

    for number in range(1, STEPS + 1):
        step(number, 0)
    for number in range(STEPS + 1, 2 * STEPS + 1):
        with state.reading():
            step(number, 1)
    return peaks[1] - peaks[0], sum(p.numel() * p.element_size() for p in module.parameters())


def _unpinned() -> Pinned:
    return Pinned(0, "")
