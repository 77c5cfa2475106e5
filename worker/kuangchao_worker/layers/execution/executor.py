"""The training loop of one rank: carries out the plan and calls the other layers through the gate, nothing else.

Never shrinks a batch, never touches weights, links or files of a checkpoint; what it needs of them it asks for.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

from kuangchao_contracts.base import Contract
from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.errors import ConflictError, NonFiniteLossError
from kuangchao_contracts.plan import Precision
from kuangchao_contracts.ports.state import RestoreRequest, SaveRequest, StepResult, SubmitGradients
from kuangchao_contracts.run import Empty
from kuangchao_worker.layers.execution.agreement import Agreed, Agreement
from kuangchao_worker.layers.execution.context import ExecutionContext
from kuangchao_worker.layers.execution.data import Batches
from kuangchao_worker.layers.execution.meter import Meter
from kuangchao_worker.layers.execution.metrics import LossLog
from kuangchao_worker.layers.execution.reported import Reported
from kuangchao_worker.layers.execution.schedule import Agree, Commit, Compute, Operation, Pipe, compiled
from kuangchao_worker.pod.assignment import Assignment
from kuangchao_worker.pod.shards import working_name
from kuangchao_worker.reports import MAX_NAMES

PLAN_CHECKED_EVERY: Final = 100
"""Steps between two looks at whether somebody has changed the frozen plan in memory: each costs about 20 us."""
MAX_NAME: Final = 64
"""Bytes of the name of a measurement."""
log = logging.getLogger("kuangchao.rank")


class Outcome(StrEnum):
    """How the loop ended."""

    FINISHED = "Finished"
    DRAINED = "Drained"


class Call(Protocol):
    """A step call through the rank's gate."""

    def __call__(self, op: str, request: Contract) -> Contract: ...


class Algorithm(Protocol):
    """The user's code as execution sees it."""

    def micro_step(self, batch: Any, *, last: bool) -> float:
        """Forward and backward of one micro-batch; gradients are reduced over the ranks on the last one."""

    def pipe_step(self, batches: list[Any]) -> float:
        """All micro-batches through the stages on this rank; the sum of their losses, 0 where there is no loss."""

    def evaluate(self) -> dict[str, float]:
        """Final measurements; empty when the task has none or this is not rank 0."""


class Report(Protocol):
    """Tells the agent where the rank is."""

    def __call__(self, step: int, section: str, metrics: dict[str, str]) -> None: ...


@dataclass(kw_only=True)
class Executor:
    """Everything is injected; `stop` is true once somebody has asked this rank to end early."""

    assignment: Assignment
    call: Call
    algorithm: Algorithm
    batches: Batches
    context: ExecutionContext
    agreement: Agreement
    log: LossLog
    report: Report
    stop: Callable[[], bool]
    guard: Callable[[], None] = lambda: None
    """Raises what was refused to code of the user that went on as if nothing had been."""
    clock: Callable[[], float] = time.monotonic
    meter: Meter
    reported: Reported = field(default_factory=Reported)
    """What code of the user says while it trains."""
    _saved_at: float = field(init=False, default=0.0)
    _saved_step: int = field(init=False, default=0)
    _operations: tuple[Operation, ...] = field(init=False)
    _plan: str = field(init=False)
    metrics: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        plan = self.assignment.launch.plan
        self._operations, self._plan = compiled(plan), plan.hash

    def run(self, restore: CheckpointRef | None) -> Outcome:
        """Restore if there is something to restore, then train to the last step or until all ranks agree to stop."""
        self._saved_at = self.clock()
        agreed = self.agreement.start(restore)
        if agreed is not None:
            self._restore(agreed)
        last = self.assignment.launch.training.steps
        stopped = False
        self._enter("train")
        while self.context.step < last and not stopped:
            stopped = self._step()
        outcome = Outcome.DRAINED if stopped and self.context.step < last else Outcome.FINISHED
        # the last step has none after it that would look
        self.guard()
        self._save()
        self.log.flush()
        self.metrics |= self.reported.texts(now=True)
        if outcome is Outcome.FINISHED:
            self._evaluate()
        return outcome

    def _restore(self, restore: CheckpointRef) -> None:
        self._enter("restore")
        base = self.assignment.checkpoint_directory
        if base is None:
            raise ValueError("a restore point without a checkpoint directory")
        self.call("state.restore", RestoreRequest(checkpoint=restore, directory=str(Path(base) / restore.path)))
        self.context.done("restore")
        self._move_to(restore.step)
        self._saved_step = restore.step
        self.report(restore.step, "restore", self.metrics)

    def _step(self) -> bool:
        """One step; whether all ranks agreed to stop after it."""
        self.context.enter("train")
        step, loss = self.context.step + 1, 0.0
        if step % PLAN_CHECKED_EVERY == 0:
            self._check_plan(step)
        self.meter.begin()
        parts = self.batches.indices(step)
        result: Contract = Empty()
        agreed = Agreed(loss=0.0, stop=False, save=False)
        for operation in self._operations:
            match operation:
                case Compute(number, reduce):
                    loss += self.algorithm.micro_step(self.batches.load(parts[number]), last=reduce)
                case Pipe():
                    loss += self.algorithm.pipe_step([self.batches.load(part) for part in parts])
                case Commit():
                    self.meter.computed()
                    self._require_sound(step, loss)
                    result = self.call("state.submit_gradients", SubmitGradients(step_id=step))
                    self.context.done("submit_gradients")
                case Agree():
                    norm = float(result.gradient_norm) if isinstance(result, StepResult) else 0.0
                    agreed = self.agreement.after_step(
                        loss / len(parts), stop=self.stop(), save=self._due(), step=step, norm=norm
                    )
        self._move_to(step)
        self._publish(agreed.loss, result)
        if agreed.save and not agreed.stop:
            self._save()
        return agreed.stop

    def _require_sound(self, step: int, loss: float) -> None:
        """Raise what stands against using the gradients of this step, before anybody does."""
        self.guard()
        # with gradients that are scaled for fp16, a loss that overflows is part of finding the scale
        if not math.isfinite(loss) and self.assignment.launch.training.precision is not Precision.FP16:
            raise NonFiniteLossError(f"rank {self.assignment.rank}, step {step}: the loss is {loss}")

    def _check_plan(self, step: int) -> None:
        """Raise ConflictError if the plan is no longer the one that links and operations were made from."""
        present = self.assignment.launch.plan.hash
        if present != self._plan:
            raise ConflictError(
                f"step {step}: the plan is now {present[:8]}, but this rank was built for {self._plan[:8]}"
            )

    def _move_to(self, step: int) -> None:
        self.context.step = step
        self.context.samples = step * self.assignment.launch.plan.global_batch
        self.context.epoch = self.batches.order.epoch(self.context.samples)

    def _publish(self, loss: float, result: Contract) -> None:
        self.log.add(self.context.step, loss, self.reported.after_step())
        # where there is no room for all, the first ones go
        self.metrics = {**self.meter.after_step(), **self.reported.texts(), "loss": f"{loss:.10g}"}
        if isinstance(result, StepResult):
            self.metrics["gradientNorm"] = result.gradient_norm
            if result.loss_scale is not None:
                self.metrics |= {"lossScale": result.loss_scale, "skippedSteps": str(result.skipped)}
        self.report(self.context.step, self.context.section, self.metrics)

    def _due(self) -> bool:
        """Whether this rank thinks that a checkpoint is due after the step that is ending."""
        launch = self.assignment.launch
        every, seconds = launch.checkpoint_every_steps, launch.checkpoint_every_seconds
        by_step = every is not None and (self.context.step + 1) % every == 0
        by_time = seconds is not None and self.clock() - self._saved_at >= seconds
        return by_step or by_time

    def _save(self) -> None:
        """Save the state after the present step, unless that is done already or there is nowhere to save to."""
        base, step = self.assignment.checkpoint_directory, self.context.step
        if base is None or step == self._saved_step:
            return
        self._enter("checkpoint")
        # a restore goes back to a saved step, so the curve up to it must not be lost with this process
        self.log.flush()
        directory = Path(base) / working_name(step, self.assignment.attempt)
        self.call("state.save", SaveRequest(step=step, directory=str(directory)))
        self.context.done("save")
        self._saved_step, self._saved_at = step, self.clock()

    def _evaluate(self) -> None:
        self._enter("evaluate")
        found = _told(self.algorithm.evaluate())
        self.reported.after_step()
        found = {**self.reported.texts(now=True), **found}
        self.guard()
        # nobody leaves before rank 0 has measured: a rank that is gone early looks like a failure
        self.agreement.after_step(0.0, stop=False, save=False)
        self.metrics |= found
        self._enter("finished")

    def _enter(self, section: str) -> None:
        self.context.enter(section)
        self.report(self.context.step, section, self.metrics)


def _told(found: Mapping[str, float]) -> dict[str, str]:
    """Measurements as the agent is told them. It takes so many and no more: with the others all would be lost."""
    told = [name for name in found if name.isprintable() and len(name.encode()) <= MAX_NAME][:MAX_NAMES]
    if len(told) < len(found):
        left = next(name for name in found if name not in told)
        log.warning("more than %d measurements, or long names: %.80r and others are left out", MAX_NAMES, left)
    return {name: f"{found[name]:.6g}" for name in told}
