"""A run that goes on where an earlier one stopped: the same job with its next attempt, in a directory of its own.

Identity, attempts and ledger are the earlier run's; its files stay as they are, so it can be gone on from again.
"""

import fcntl
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.trainingjob import TrainingJobStatus
from kuangchao_contracts.errors import InvalidInputError

OPTION: Final = "--resume"
OPLOGS: Final = "oplog"
CHECKPOINTS: Final = "step-*"


@dataclass(frozen=True)
class Earlier:
    """An earlier run of a job."""

    root: Path
    job: TrainingJob

    @property
    def _status(self) -> TrainingJobStatus:
        return self.job.status or TrainingJobStatus()

    @property
    def uid(self) -> str:
        """What the checkpoints are marked with."""
        return self.job.metadata.uid or ""

    @property
    def files(self) -> Path:
        """What the job has on the volume of the earlier run."""
        storage = self.job.spec.checkpoint.storage
        own = storage.path if storage is not None else None
        return self.root / "checkpoints" / (own or names.checkpoint_directory(self.job.metadata.name, self.uid))

    def onward(self) -> TrainingJobStatus:
        """The status to begin with. No process and no token of the earlier run's attempts is taken for one of ours."""
        status = self._status
        return TrainingJobStatus(
            attempt=status.attempt + 1, incarnation=status.incarnation + 1, checkpoints=status.checkpoints
        )

    def bring(self, volume: Path) -> None:
        """Put the checkpoints of the ledger, and what else the job has on the volume, onto a new one.

        Files of a checkpoint are never written again, so a link is enough. Operation logs stay with the records that
        pin them. Raises InvalidInputError when something cannot be read.
        """
        target = volume / self.files.relative_to(self.root / "checkpoints")
        try:
            shutil.copytree(self.files, target, ignore=shutil.ignore_patterns(OPLOGS, CHECKPOINTS))
            for checkpoint in self._status.checkpoints:
                shutil.copytree(self.files / checkpoint.path, target / checkpoint.path, copy_function=_linked)
        except (OSError, shutil.Error) as error:
            raise InvalidInputError(OPTION, str(self.root), f"its checkpoints cannot be read: {error}") from None


def earlier_run(directory: Path, wish: TrainingJob) -> Earlier:
    """The run of a directory, for a job that is to go on from it. Raises InvalidInputError saying why it cannot."""
    root = directory.resolve()
    try:
        job = TrainingJob.model_validate_json((root / "status.json").read_bytes())
    except (OSError, ValidationError):
        raise InvalidInputError(OPTION, str(directory), "is no directory of a run", "runs/<job>-<time>") from None
    for field, value in _CONSTANT.items():
        had, wanted = value(job), value(wish)
        if had != wanted:
            raise InvalidInputError(field, wanted, f"is not that of {OPTION} {directory}", had)
    earlier = Earlier(root, job)
    if _goes_on(root):
        raise InvalidInputError(OPTION, str(directory), "is still running; end it with Ctrl-C first")
    if not (job.status and job.status.checkpoints) and (job.spec.task or not earlier.files.is_dir()):
        why = "has kept no checkpoint"
        if job.spec.checkpoint.storage is None:
            why += ": its job has no spec.checkpoint.storage"
        raise InvalidInputError(OPTION, str(directory), why)
    return earlier


_CONSTANT: Final[dict[str, Callable[[TrainingJob], object]]] = {
    "metadata.name": lambda job: job.metadata.name,
    "spec.task": lambda job: job.spec.task,
    "spec.checkpoint.storage": lambda job: job.spec.checkpoint.storage and job.spec.checkpoint.storage.wire(),
}
"""What a job that goes on is known by, and where its checkpoints are."""


def _goes_on(root: Path) -> bool:
    """Whether somebody still writes its audit store: the lock dies with its holder."""
    try:
        descriptor = os.open(root / "audit" / "writer.lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _linked(source: str, target: str) -> str:
    """A hard link, or a copy where the volume has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
