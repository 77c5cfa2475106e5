"""Runs the user's task on the module that state owns. User code sees a module and a batch, nothing of the plan."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

import torch
from torch import nn

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Precision
from kuangchao_worker.layers.state.chain import chain
from kuangchao_worker.parallel.groups import Groups, divided_over
from kuangchao_worker.parallel.nested import mapped
from kuangchao_worker.rank.chained import require_chain
from kuangchao_worker.rank.stages import loss_of, model_input, on_model
from kuangchao_worker.tasks import Task

COMPUTED_IN: Final = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
"""Formats that torch casts to where it is safe; parameters stay in fp32."""


class Rule(Protocol):
    """What state does with gradients, as far as the loss must know it."""

    @property
    def factor(self) -> float:
        """What losses are multiplied by, so that gradients do not vanish."""


class Store(Protocol):
    """What state gives to the user's code."""

    @property
    def rule(self) -> Rule:
        """How gradients become an update."""

    def compute(self, function: Callable[[nn.Module, Any], Any], batch: Any) -> Any:
        """What a function gives for the module and a batch, as one forward pass."""

    def reduction(self, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch."""

    def complete(self, make: Callable[[], nn.Module]) -> nn.Module | None:
        """A plain module with the weights of all ranks, on rank 0. All ranks must call."""


class Pipe(Protocol):
    """The stages of a pipeline on a rank, as execution runs them; whether the model begins or ends with them."""

    first: bool
    last: bool

    def step(self, inputs: Sequence[torch.Tensor], loss: Callable[[torch.Tensor, int], torch.Tensor]) -> list[float]:
        """Forward and backward of all micro-batches; the losses where the model ends."""


class TaskAlgorithm:
    """Forward, backward and evaluation of one rank."""

    def __init__(
        self,
        task: Task,
        store: Store,
        *,
        device: torch.device,
        accumulation: int,
        precision: Precision,
        pipe: Pipe | None = None,
        groups: Groups | None = None,
    ) -> None:
        self._task, self._store, self._device = task, store, device
        self._pipe, self._groups = pipe, groups or Groups()
        self._scale, self._precision = 1 / accumulation, precision
        if pipe is not None:
            require_chain(task, lambda module: chain(module, task.rules))

    def micro_step(self, batch: Any, *, last: bool) -> float:
        """See Algorithm."""
        with self._store.reduction(last=last), divided_over(self._groups):
            with self._autocast():
                loss: torch.Tensor = self._store.compute(self._loss, _to_device(batch, self._device))
            factor = self._scale * self._store.rule.factor
            (loss if factor == 1 else loss * factor).backward()  # type: ignore[no-untyped-call]  # torch
        if self._groups.context is not None and not self._groups.attended:
            # its tokens never met those of other ranks: what it learns would be another model's
            raise InvalidInputError("task.rules.tokens", "given", "but the model calls no kuangchao_worker.parallel")
        return loss.item()

    def _loss(self, module: nn.Module, batch: Any) -> torch.Tensor:
        # looked at before ranks wait for one another in what their gradients have in common
        return on_model(self._task.loss(module, batch))

    def pipe_step(self, batches: list[Any]) -> float:
        """See Algorithm."""
        pipe = self._pipe
        if pipe is None:
            raise ValueError("a plan without pipeline has no stages")
        on = [_to_device(batch, self._device) for batch in batches] if pipe.first or pipe.last else []

        factor = self._scale * self._store.rule.factor

        def loss(output: torch.Tensor, number: int) -> torch.Tensor:
            with self._autocast():
                return loss_of(self._task, output, on[number]) * factor

        inputs = [model_input(self._task, batch) for batch in on] if pipe.first else []
        with divided_over(self._groups), self._autocast():
            return sum(pipe.step(inputs, loss)) / factor

    def evaluate(self) -> dict[str, float]:
        """See Algorithm."""
        if self._task.evaluate is None:
            return {}
        module = self._store.complete(self._task.model)
        if module is None:
            return {}
        module = module.to(self._device).eval()
        with torch.no_grad(), self._autocast():
            return figures(self._task.evaluate(module))

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = COMPUTED_IN.get(self._precision)
        return torch.autocast(self._device.type, dtype=dtype) if dtype is not None else nullcontext()


def figures(found: Any) -> dict[str, float]:
    """What a task measured, as numbers by name. Raises InvalidInputError for anything else."""
    if not isinstance(found, Mapping):
        raise InvalidInputError("task.evaluate", type(found).__name__, "is no dict of numbers by name", "{'loss': 0.5}")
    numbers = {}
    for name, value in found.items():
        try:
            numbers[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise InvalidInputError(f"task.evaluate.{name}", type(value).__name__, "is no single number") from None
    return numbers


def _to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device."""
    if device.type == "cpu":
        return batch
    return mapped(batch, lambda tensor: tensor.to(device, non_blocking=True))
