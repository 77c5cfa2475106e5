"""The ledger of committed checkpoints, which is `status.checkpoints`: what a restore may read, oldest first. Pure.

A checkpoint that is not here does not exist, whatever lies on the volume, so a late writer of an old attempt can fill
the disk but never change what a restore reads.
"""

from datetime import datetime

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.trainingjob import TrainingJobStatus
from kuangchao_contracts.checkpoint import CheckpointManifest, CheckpointRef
from kuangchao_contracts.errors import CheckpointCorruptError, ConflictError, InvalidInputError, StaleEpochError
from kuangchao_contracts.run import CommitReply, CommitRequest


def commit(
    job: TrainingJob, request: CommitRequest, attempt: int, now: datetime
) -> tuple[TrainingJobStatus, CommitReply]:
    """The status with the checkpoint in the ledger, and the answer to the agent. Repeating a commit changes nothing.

    `attempt` is that of the caller's token. Raises StaleEpochError for another attempt than the current one,
    ConflictError for a step below the newest of this attempt, InvalidInputError for a manifest that is not this job's.
    """
    status = job.status or TrainingJobStatus()
    manifest = request.manifest
    if attempt != status.attempt or manifest.attempt != attempt:
        raise StaleEpochError(f"commit by attempt {manifest.attempt}, the current one is {status.attempt}")
    _check(job, status, manifest)
    ledger = ordered(status)
    entry = CheckpointRef(
        step=manifest.step, attempt=attempt, path=request.path, digest=manifest.content_hash(), time=now
    )
    known = next((c for c in ledger if (c.step, c.attempt, c.path, c.digest) == _identity(entry)), None)
    if known is not None:
        return status, CommitReply(committed=known)
    newest = ledger[-1] if ledger else None
    if newest is not None and newest.attempt == attempt and manifest.step <= newest.step:
        raise ConflictError(f"step {manifest.step} is not above step {newest.step}, which is committed")
    kept = (*ledger, entry)[-job.spec.checkpoint.keep :]
    pruned = tuple(c.path for c in ledger if c not in kept)
    return status.replace(checkpoints=kept), CommitReply(committed=entry, prune=pruned)


def restore_point(status: TrainingJobStatus | None, damaged: tuple[str, ...] = ()) -> CheckpointRef | None:
    """The newest committed checkpoint whose digest is not in `damaged`; None only when nothing was ever committed.

    Raises CheckpointCorruptError when all are damaged: a job never starts from step 0 by silent mistake.
    """
    ledger = ordered(status or TrainingJobStatus())
    usable = [c for c in ledger if c.digest not in damaged]
    if ledger and not usable:
        steps = ", ".join(str(c.step) for c in ledger)
        raise CheckpointCorruptError(f"all committed checkpoints are damaged (steps {steps})")
    return usable[-1] if usable else None


def ordered(status: TrainingJobStatus) -> tuple[CheckpointRef, ...]:
    """Ledger entries, oldest first. A later attempt knew more: what it commits counts as newer at any step."""
    return tuple(sorted(status.checkpoints, key=lambda c: (c.attempt, c.step)))


def _identity(entry: CheckpointRef) -> tuple[int, int, str, str]:
    return entry.step, entry.attempt, entry.path, entry.digest


def _check(job: TrainingJob, status: TrainingJobStatus, manifest: CheckpointManifest) -> None:
    if manifest.job_uid != job.metadata.uid:
        raise InvalidInputError("manifest.jobUid", manifest.job_uid, "is another job", job.metadata.uid)
    if manifest.world_size != job.spec.devices.count:
        raise InvalidInputError(
            "manifest.worldSize", manifest.world_size, "is not the job's world size", job.spec.devices.count
        )
    if manifest.plan_hash != status.plan_hash:
        raise InvalidInputError("manifest.planHash", manifest.plan_hash, "is not the current plan", status.plan_hash)
