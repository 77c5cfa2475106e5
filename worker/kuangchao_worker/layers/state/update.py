"""From the gradients of a step to an update: scaled back where the loss was scaled, clipped, left out where they are no
numbers. The same on every rank, since all of it follows from the norm over the whole model, which all ranks have.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from kuangchao_contracts.errors import NonFiniteGradientsError

FIRST_SCALE: Final = 2.0**16
GROWTH: Final = 2.0
BACKOFF: Final = 0.5
GROWTH_STEPS: Final = 2_000
LEAST_SCALE: Final = 1.0
EPSILON: Final = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to a norm before it divides by it."""


@dataclass
class LossScale:
    """The factor of a loss whose gradients would vanish in fp16, found as `torch.amp.GradScaler` finds it.

    It grows after so many steps in a row whose gradients were numbers, and falls with each other step, which is skipped
    (Micikevicius et al. 2018, section 3.2). A power of two, so that scaling back changes no bit.
    """

    value: float = FIRST_SCALE
    good: int = 0
    """Steps since it last changed."""
    skipped: int = 0
    """Steps of the run that were skipped."""

    def update(self, *, finite: bool) -> None:
        """After a step. Raises NonFiniteGradientsError where falling further cannot help."""
        if not finite:
            if self.value <= LEAST_SCALE:
                raise NonFiniteGradientsError(f"the gradients are no numbers even with a loss scale of {self.value:g}")
            self.value, self.good, self.skipped = self.value * BACKOFF, 0, self.skipped + 1
            return
        self.good += 1
        if self.good == GROWTH_STEPS:
            self.value, self.good = self.value * GROWTH, 0

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"value": self.value, "good": self.good, "skipped": self.skipped}

    def load(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.value, self.good, self.skipped = float(state["value"]), int(state["good"]), int(state["skipped"])


@dataclass
class UpdateRule:
    """How gradients become an update. `clip_norm` bounds their norm over the whole model."""

    clip_norm: float | None = None
    scale: LossScale | None = None

    @property
    def factor(self) -> float:
        """What losses are multiplied by."""
        return self.scale.value if self.scale is not None else 1.0

    def carry_out(
        self,
        norm: float,
        gradients: Sequence[torch.Tensor],
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
    ) -> float:
        """Update from gradients of this norm, of which these are this rank's pieces, and clear them.

        Returns the norm before clipping, of gradients of the loss as it is; infinite for a step that was skipped.
        Raises NonFiniteGradientsError, with nothing updated, where it is no number and the loss was not scaled.
        """
        norm /= self.factor
        finite = math.isfinite(norm)
        if not finite and self.scale is None:
            raise NonFiniteGradientsError(f"the gradient norm is {norm}")
        if finite:
            self._scale_back(norm, gradients)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        if self.scale is not None:
            self.scale.update(finite=finite)
        return norm if finite else math.inf

    def _scale_back(self, norm: float, gradients: Sequence[torch.Tensor]) -> None:
        clipped = 1.0 if self.clip_norm is None else min(1.0, self.clip_norm / (norm + EPSILON))
        if gradients and (factor := clipped / self.factor) != 1.0:
            torch._foreach_mul_(list(gradients), factor)
