"""Progress and metrics of a Hugging Face `Trainer`: `Trainer(..., callbacks=[ReportCallback()])`.

Needs transformers. Watches only: it changes nothing of the training and never makes it wait.
"""

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from kuangchao_worker import report
from kuangchao_worker.integrations.figures import figures


class ReportCallback(TrainerCallback):  # type: ignore[misc]  # its package need not be there when types are checked
    """Reports each optimizer step, and what the trainer logs (`logging_steps`)."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """An optimizer step is done."""
        del args
        report.progress(state.global_step, state.max_steps if state.max_steps > 0 else None)
        # neither makes a step, and both may take longer than a step ever should
        if control.should_evaluate or control.should_save:
            report.section("evaluate" if control.should_evaluate else "checkpoint")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """The trainer has logged something."""
        del args, state, control
        report.metrics(**figures(logs or {}))
