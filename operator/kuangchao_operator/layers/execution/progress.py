"""What a job's status says of its progress: step, percentage, time left and metrics, written seldom. Pure."""

from datetime import datetime

from kuangchao_contracts.api.trainingjob import Progress
from kuangchao_contracts.text import printable
from kuangchao_operator.layers.execution import limits
from kuangchao_operator.layers.execution.draft import Draft
from kuangchao_operator.layers.execution.facts import Gang


def note_progress(draft: Draft, gang: Gang, *, final: bool = False) -> None:
    """Enter the newest known step, unless it may wait; `final`: it is the last word and may not."""
    old = draft.status.progress
    step = gang.step
    # ranks that have not made a step yet know nothing of those before them: what was known stands until they do
    if not gang.reports or not step or (old is not None and step == old.step and not final):
        return
    total = _total(draft, gang, old)
    percent = min(100, step * 100 // total) if total else 0
    if not final and not _worth_writing(old, step, percent, draft.now):
        return
    leader = gang.agents.get(0)
    told = leader.heartbeat.metrics if leader is not None else {}
    metrics = {printable(k): printable(v)[:64] for k, v in told.items()} or (old.metrics if old else {})
    gained = old is None or step > old.step
    new = Progress(
        step=step,
        total_steps=total,
        percent=percent,
        eta_seconds=_eta(old, step, total, draft.now),
        metrics=metrics,
        # a lower step after a restore is no progress: hang detection counts from here
        updated_at=draft.now if gained or old is None else old.updated_at,
    )
    draft.update(progress=new, progress_text=f"{step}/{total}" if total else str(step))


def _total(draft: Draft, gang: Gang, old: Progress | None) -> int:
    """Steps of the whole run, 0 if unknown: a task's are the job's, any other program has to say them."""
    if draft.spec.task is not None:
        return draft.spec.training.steps
    # the last words of a pod may be lost, and with them what was known
    return gang.total_steps or (old.total_steps if old is not None else 0)


def _worth_writing(old: Progress | None, step: int, percent: int, now: datetime) -> bool:
    if old is None or old.updated_at is None or step < old.step:
        return True
    waited = (now - old.updated_at).total_seconds() >= limits.TICK
    return waited or percent - old.percent >= limits.PROGRESS_PERCENT


def _eta(old: Progress | None, step: int, total: int, now: datetime) -> int | None:
    if old is None or old.updated_at is None or step <= old.step or not total:
        return None
    per_step = (now - old.updated_at).total_seconds() / (step - old.step)
    return max(0, round(per_step * (total - step)))
