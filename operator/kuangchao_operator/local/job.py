"""A manifest as the API server would have stored it: with identity, namespace and time. Changes no wish of the user
except those that have no meaning on one machine, and says so."""

from datetime import datetime
from uuid import uuid4

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.trainingjob import Priority
from kuangchao_operator.local.earlier import Earlier

NAMESPACE = "default"


def admit(job: TrainingJob, now: datetime, earlier: Earlier | None = None) -> tuple[TrainingJob, tuple[str, ...]]:
    """The stored job, the same as in an earlier run that it goes on from, and notes on what differs from a cluster."""
    uid = earlier.uid if earlier is not None else str(uuid4())
    metadata = job.metadata.replace(
        name=job.metadata.name or f"{job.metadata.generate_name}{uid[:5]}",
        namespace=job.metadata.namespace or NAMESPACE,
        uid=uid,
        generation=1,
        resource_version="1",
        creation_timestamp=now,
        deletion_timestamp=None,
    )
    # alone in its pool, a debug job would wait for ever for a debug share that is a fraction of its own size
    spec = job.spec.replace(
        priority=Priority.PRODUCTION, suspend=False, managed_by=None, ttl_seconds_after_finished=None
    )
    status = earlier.onward() if earlier is not None else None
    return job.replace(metadata=metadata, spec=spec, status=status), tuple(_notes(job))


def _notes(job: TrainingJob) -> list[str]:
    spec, notes = job.spec, []
    if spec.suspend:
        notes.append("spec.suspend is true; it is run all the same")
    ignored = [
        name
        for name, given in (
            ("template.image", spec.template.image),
            ("template.volumes", spec.template.volumes),
            ("podOverrides", spec.pod_overrides),
        )
        if given
    ]
    if ignored:
        notes.append(f"ignored without a cluster: {', '.join(ignored)}")
    return notes
