"""What the ExecutionContext costs in a step: what the executor does with it, noted once, then done over and over.

A difference of two executors, with and without, would drown in the noise of a step. This way only the context runs.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from bench.figures import Bound, Figure
from kuangchao_contracts.base import Contract
from kuangchao_contracts.plan import Axis, AxisGroups, ParallelPlan, TrainingSpec
from kuangchao_contracts.ports.state import StepResult
from kuangchao_contracts.run import LaunchSpec
from kuangchao_worker.layers.execution.agreement import Agreement
from kuangchao_worker.layers.execution.context import ExecutionContext
from kuangchao_worker.layers.execution.data import Batches
from kuangchao_worker.layers.execution.executor import Executor
from kuangchao_worker.layers.execution.meter import Meter
from kuangchao_worker.layers.execution.metrics import LossLog
from kuangchao_worker.pod.assignment import Assignment
from kuangchao_worker.tasks.mlp import mlp

STEP_MICROSECONDS: Final = 50_000
"""The shortest of the steps that targets are stated for."""
SHARE: Final = 0.5
"""Per cent of such a step that the context may take."""
STEPS: Final = 12
BATCH: Final = 8
Act = tuple[str, tuple[Any, ...], bool]
"""Name of a method, or of a member that is set; what it was given; whether it is a method."""


class Noting:
    """Stands for a context, passes on whatever is done with it, and notes it. Reading a member is not noted."""

    def __init__(self, context: ExecutionContext) -> None:
        self.__dict__.update(_context=context, acts=list[Act]())

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._context, name)
        if not callable(found):
            return found

        def call(*given: Any) -> Any:
            self.acts.append((name, given, True))
            return found(*given)

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        self.acts.append((name, (value,), False))
        setattr(self._context, name, value)


def figures(quick: bool = False) -> list[Figure]:
    """Microseconds a step, and their share of a step of 50 ms."""
    cost = microseconds(acts_of_a_step(), 200 if quick else 20_000)
    share = round(100 * cost / STEP_MICROSECONDS, 4)
    return [
        Figure("worker", "execution context", round(cost, 2), "us/step"),
        Figure("worker", "the same, of a step of 50 ms", share, "%", Bound.AT_MOST, SHARE),
    ]


def microseconds(acts: list[Act], count: int) -> float:
    """Median of five turns; a turn is so many steps. Calling by name is in it, so it is a bound from above."""
    context = ExecutionContext()
    turns = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            for name, given, method in acts:
                if method:
                    getattr(context, name)(*given)
                else:
                    setattr(context, name, given[0])
        turns.append((time.perf_counter() - start) * 1e6 / count)
    return statistics.median(turns)


def acts_of_a_step() -> list[Act]:
    """What the executor does with its context in one step in the middle of a run."""
    noting, marks = Noting(ExecutionContext()), list[int]()
    with tempfile.TemporaryDirectory() as folder:
        _executor(noting, lambda *_: marks.append(len(noting.acts)), Path(folder)).run(None)
    # the report of a step is the last thing that it does
    return list(noting.acts[marks[STEPS // 2] : marks[STEPS // 2 + 1]])


class _Nothing:
    """An algorithm that computes nothing."""

    def micro_step(self, batch: Any, *, last: bool) -> float:  # noqa: ARG002
        return 0.0

    def pipe_step(self, batches: list[Any]) -> float:  # noqa: ARG002
        return 0.0

    def evaluate(self) -> dict[str, float]:
        return {}


def _executor(context: Any, report: Callable[..., None], folder: Path) -> Executor:
    plan = ParallelPlan(
        world_size=1, per_pod=1, pods=1, data=1, micro_batch=BATCH, accumulation_steps=1, global_batch=BATCH,
        groups=(AxisGroups(axis=Axis.DATA, size=1, stride=1),), memory_checked=False, device_memory_bytes=0,
        request_digest="0" * 64,
    )  # fmt: skip
    training = TrainingSpec(global_batch=BATCH, steps=STEPS)
    launch = LaunchSpec(namespace="bench", job="context", job_uid="0", task="mlp", training=training, plan=plan)
    assignment = Assignment(
        launch=launch, attempt=1, rank=0, local_rank=0, master_host="localhost", master_port=1, store_prefix="",
        monitor="", token_directory="", trust_directory="", run_directory=str(folder),
    )  # fmt: skip
    task = mlp({})

    def call(op: str, request: Contract) -> Contract:  # noqa: ARG001
        return StepResult(step=1, gradient_norm="0", elements=0)

    return Executor(
        assignment=assignment, call=call, context=context, report=report, stop=lambda: False,
        agreement=Agreement(torch.device("cpu")), batches=Batches(task.dataset, task.collate, plan, 0, 0),
        log=LossLog(None, 1), algorithm=_Nothing(), meter=Meter(plan=plan, training=training),
    )  # fmt: skip
