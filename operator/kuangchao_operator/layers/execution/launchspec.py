"""What every pod of a job is told to run: job and plan as one value. Pure."""

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.plan import ParallelPlan, known_to_older_workers
from kuangchao_contracts.run import LaunchSpec


def launch_spec(job: TrainingJob, plan: ParallelPlan) -> LaunchSpec:
    """The launch spec of a job under its plan."""
    spec, meta = job.spec, job.metadata
    policy = spec.checkpoint
    return LaunchSpec(
        namespace=meta.namespace or "",
        job=meta.name,
        job_uid=meta.uid,
        task=spec.task,
        task_args=dict(spec.task_args),
        plugins=spec.plugins,
        command=spec.command,
        training=known_to_older_workers(spec.training),
        plan=plan,
        checkpoint_every_steps=policy.every_steps,
        checkpoint_every_seconds=policy.every_minutes * 60 if policy.every_minutes else None,
        checkpoint_keep=policy.keep,
        checkpoint_path=checkpoint_path(job),
    )


def checkpoint_path(job: TrainingJob) -> str | None:
    """The job's directory below its checkpoint volume; None for a job without storage."""
    storage = job.spec.checkpoint.storage
    if storage is None:
        return None
    return storage.path or names.checkpoint_directory(job.metadata.name, job.metadata.uid)


def newest_checkpoint(job: TrainingJob) -> CheckpointRef | None:
    """What to restore: the newest entry of the ledger. A later attempt's entry is newer at any step."""
    ledger = job.status.checkpoints if job.status else ()
    return max(ledger, key=lambda c: (c.attempt, c.step), default=None)


def grace_seconds(job: TrainingJob) -> int:
    """How long the job's pods have from SIGTERM to SIGKILL."""
    given = job.spec.pod_overrides.get("spec", {}).get("terminationGracePeriodSeconds")
    return given if isinstance(given, int) else job.spec.template.termination_grace_period_seconds
