"""Progress and metrics of a Lightning `Trainer`: `Trainer(..., callbacks=[ReportCallback()])`.

Needs lightning. Watches only: it changes nothing of the training and never makes it wait.
"""

import math
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from kuangchao_worker import report
from kuangchao_worker.integrations.figures import figures


class ReportCallback(Callback):  # type: ignore[misc]  # its package need not be there when types are checked
    """Reports each optimizer step, and what the module has logged every `log_every_n_steps`."""

    def __init__(self) -> None:
        self._total: int | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """How many steps there will be is known only now; without limits there is no number."""
        del pl_module
        steps = trainer.estimated_stepping_batches
        self._total = int(steps) if math.isfinite(steps) and steps > 0 else None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A micro-batch is done, and with it an optimizer step or not."""
        del pl_module, outputs, batch, batch_idx
        step = trainer.global_step
        report.progress(step, self._total)
        # reading a metric may wait for a GPU, so it is read as seldom as the trainer itself does
        if step % max(1, trainer.log_every_n_steps) == 0 or step == self._total:
            report.metrics(**figures(trainer.callback_metrics))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A validation begins: it makes no step, and may take longer than a step ever should."""
        del pl_module
        if not trainer.sanity_checking:
            report.section("evaluate")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A validation is done; the one before training proves nothing."""
        del pl_module
        if not trainer.sanity_checking:
            report.metrics(**figures(trainer.callback_metrics))
