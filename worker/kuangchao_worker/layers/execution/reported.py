"""What code of a task reports of itself while it trains: the mean over a step, by name, of rank 0's own micro-batches.

Sends nothing and waits for no device: a tensor there is added to and read later, some steps at a time.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker.reports import REPORT_SECONDS, Names, decimal, number

Means = Mapping[str, float | torch.Tensor]
"""By name; tensors where they lie on an accelerator."""
TAKEN: Final = frozenset(
    {
        "loss", "gradientNorm", "lossScale", "skippedSteps",
        "stepSeconds", "samplesPerSecond", "tokensPerSecond", "mfu",
        "memoryBytes", "memoryGrowthBytes", "acceleratorBytes", "gradientCompression",
        "checkpointStep", "checkpointErrors", "checkpointError", "linkLoss", "linkLatencySeconds", "worstLink",
    }
)  # fmt: skip
"""What ranks and agents measure themselves, with the names that end in `MEASURED`."""
MEASURED: Final = "CommunicationSeconds"


class Reported:
    """Values of the step that is being made. `kept`: of this rank; of the others they are judged and forgotten."""

    def __init__(self, *, kept: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept, self._clock, self._lock = kept, clock, threading.Lock()
        self._names = Names()
        self._sums: dict[str, tuple[float | torch.Tensor, int]] = {}
        self._unread: dict[str, float | torch.Tensor] = {}
        self._texts: dict[str, str] = {}
        self._looked = clock() - REPORT_SECONDS

    def note(self, metrics: Mapping[str, Any]) -> None:
        """Add what code of the task says, on any thread. Raises InvalidInputError for what cannot be reported."""
        for name, value in metrics.items():
            _require_own(name, value)
        if not self._kept:
            return
        found = {name: _value(name, value) for name, value in metrics.items()}
        with self._lock:
            for name, value in self._names.known(found).items():
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + value, count + 1

    def after_step(self) -> Means:
        """The means of a step that has ended. The next one begins."""
        if not self._sums:
            return {}
        with self._lock:
            sums, self._sums = self._sums, {}
        means = {name: total / count for name, (total, count) in sums.items()}
        self._unread |= means
        return means

    def texts(self, *, now: bool = False) -> Mapping[str, str]:
        """The newest values as people read them, renewed as seldom as anybody is told of them, or `now`."""
        if self._unread and (now or self._clock() - self._looked >= REPORT_SECONDS):
            self._looked = self._clock()
            self._texts |= {name: decimal(value) for name, value in read(self._unread).items()}
            self._unread = {}
        return self._texts


def read(means: Means) -> dict[str, float]:
    """As plain numbers: waits for a device once, however many lie there."""
    there = {name: mean for name, mean in means.items() if isinstance(mean, torch.Tensor)}
    values = torch.stack(list(there.values())).tolist() if there else []
    return {name: mean for name, mean in means.items() if isinstance(mean, float)} | dict(
        zip(there, values, strict=True)
    )


def _require_own(name: str, value: Any) -> None:
    if name in TAKEN or name.endswith(MEASURED):
        raise InvalidInputError("metrics", name, "is measured without you", f"task/{name}")
    if hasattr(value, "full_tensor"):
        # to read it all ranks that hold a piece would have to
        raise InvalidInputError(f"metrics.{name}", type(value).__name__, "lies in pieces on several ranks")


def _value(name: str, value: Any) -> float | torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
        return number(name, value.detach() if isinstance(value, torch.Tensor) else value)
    return value.detach().reshape(()).double()
