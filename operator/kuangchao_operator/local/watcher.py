"""Who looks on while a local run goes: the command line's progress view, or a test."""

from typing import Protocol

from kuangchao_contracts.api import TrainingJob


class Watcher(Protocol):
    """Told of every change; must return at once and never raise."""

    def update(self, job: TrainingJob) -> None:
        """The job's status has changed."""

    def note(self, line: str) -> None:
        """Something worth a line has happened."""
