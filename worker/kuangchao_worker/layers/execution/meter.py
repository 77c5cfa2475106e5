"""How fast a rank trains and what it holds: figures of the steps since the last look, about once a second.

Measures only: it never waits, never touches a tensor, and between two looks costs a reading of the clock per step.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from kuangchao_contracts.plan import ParallelPlan, TrainingSpec

LOOK_SECONDS: Final = 1.0
_STATM: Final = Path("/proc/self/statm")


class Traffic(Protocol):
    """Measures, now and then, how long a step communicates."""

    seconds: Mapping[str, float]
    """Of the newest sampled step, by axis of the plan."""

    def begin(self) -> None:
        """A step begins."""

    def end(self) -> None:
        """Its gradients are there."""


def resident() -> int:
    """Bytes of main memory that this process holds (resident set)."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(kw_only=True)
class Meter:
    """Counts steps. What can be called is read at each look; `accelerator` and `compression` are 0 where there is none.

    `compression` is how many times fewer bytes a plug-in has made of the gradients so far.
    """

    plan: ParallelPlan
    training: TrainingSpec
    traffic: Traffic | None = None
    clock: Callable[[], float] = time.monotonic
    memory: Callable[[], int] = resident
    accelerator: Callable[[], int] = lambda: 0
    compression: Callable[[], float] = lambda: 0.0
    _since: float | None = field(init=False, default=None)
    _steps: int = field(init=False, default=0)
    _first_memory: int = field(init=False, default=0)
    _figures: dict[str, str] = field(init=False, default_factory=dict)

    def begin(self) -> None:
        """A step begins."""
        if self.traffic is not None:
            self.traffic.begin()

    def computed(self) -> None:
        """Forward and backward of the step are done, and its gradients are those of all ranks."""
        if self.traffic is not None:
            self.traffic.end()

    def after_step(self) -> Mapping[str, str]:
        """Figures as decimal texts by name, renewed after at least `LOOK_SECONDS`; none until then.

        The first step counts in none: it also builds what later steps find.
        """
        now = self.clock()
        if self._since is None:
            self._since, self._first_memory = now, self.memory()
            return self._figures
        self._steps += 1
        passed = now - self._since
        if passed >= LOOK_SECONDS:
            self._figures = {name: _text(value) for name, value in self._look(passed / self._steps).items()}
            self._since, self._steps = now, 0
        return self._figures

    def _look(self, step_seconds: float) -> dict[str, float | int]:
        found: dict[str, float | int] = {
            "stepSeconds": step_seconds,
            "samplesPerSecond": self.training.global_batch / step_seconds,
        }
        if self.training.sequence_length is not None:
            found["tokensPerSecond"] = found["samplesPerSecond"] * self.training.sequence_length
        estimate = self.plan.step
        if estimate is not None and estimate.mfu_ppm:
            # the plan's estimate is (model operations) / (peak x its time), so its product with that time is known
            found["mfu"] = estimate.mfu_ppm * 1e-6 * estimate.step_us * 1e-6 / step_seconds
        held = self.memory()
        found |= {"memoryBytes": held, "memoryGrowthBytes": held - self._first_memory}
        allocated = self.accelerator()
        if allocated:
            found["acceleratorBytes"] = allocated
        compression = self.compression()
        if compression:
            found["gradientCompression"] = compression
        if self.traffic is not None:
            found |= {f"{axis}CommunicationSeconds": value for axis, value in self.traffic.seconds.items()}
        return found


def _text(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
