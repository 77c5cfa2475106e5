"""What a change of a job means for loops and metrics. Pure."""

from kuangchao_operator.kube.cache import JobRecord
from kuangchao_operator.shell.fencing import ended
from kuangchao_operator.shell.loop import JobKey


def job_key(record: JobRecord) -> JobKey:
    """Identity of a job object."""
    metadata = record.job.metadata
    return JobKey(metadata.namespace or "", metadata.name, metadata.uid)


def needs_loop(record: JobRecord) -> bool:
    """Whether anything is left to do for a job: it has not ended, is not cleaned up, or has a time to live."""
    job = record.job
    if job.metadata.deletion_timestamp is not None:
        return record.held
    return not ended(job.status) or record.held or job.spec.ttl_seconds_after_finished is not None


def urgent(before: JobRecord | None, after: JobRecord) -> bool:
    """Whether the owner did something (spec or deletion), for which no back-off may make them wait."""
    if before is None:
        return True
    old, new = before.job.metadata, after.job.metadata
    return old.generation != new.generation or old.deletion_timestamp != new.deletion_timestamp


def devices_freed(before: JobRecord | None, after: JobRecord | None) -> bool:
    """Whether others of the pool may get something by this change: devices, or a better place in the queue."""
    if before is None:
        return False
    if after is None or job_key(before) != job_key(after):
        return True
    old, new = before.job.status, after.job.status
    if old is None or new is None:
        return False
    waited = not old.allocation
    left = ended(new) or after.job.metadata.deletion_timestamp is not None or after.job.spec.suspend
    return old.allocation != new.allocation or ended(new) != ended(old) or (waited and left)
