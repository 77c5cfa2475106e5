"""The commit ledger: late writers are fenced, order holds, nothing usable is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts.api import ObjectMeta, TrainingJob
from kuangchao_contracts.api.trainingjob import CheckpointPolicy, Devices, TrainingJobSpec, TrainingJobStatus
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.checkpoint import CheckpointManifest
from kuangchao_contracts.errors import (
    CheckpointCorruptError,
    ConflictError,
    InvalidInputError,
    KuangchaoError,
    StaleEpochError,
)
from kuangchao_contracts.faults import FaultReport
from kuangchao_contracts.reasons import Reason
from kuangchao_contracts.run import CommitReply, CommitRequest, RestorePointRequest
from kuangchao_operator.facts.store import JobStore, Mutation
from kuangchao_operator.layers.state.ledger import commit, restore_point
from kuangchao_operator.layers.state.service import StateService
from tests.unit.execution.test_service import capability
from tests.unit.execution.world import START, UID
from tests.unit.state.test_decide import failure

PLAN = "a" * 64


def make(attempt: int = 1, keep: int = 2) -> TrainingJob:
    return TrainingJob(
        metadata=ObjectMeta(name="job", namespace="team", uid=UID),
        spec=TrainingJobSpec(pool="p", task="m:f", devices=Devices(count=2), checkpoint=CheckpointPolicy(keep=keep)),
        status=TrainingJobStatus(attempt=attempt, plan_hash=PLAN),
    )


def request(step: int, attempt: int = 1, **changes: object) -> CommitRequest:
    fields = {
        "job_uid": UID,
        "step": step,
        "attempt": attempt,
        "world_size": 2,
        "plan_hash": PLAN,
        "torch_version": "2",
        "files": (),
    }
    manifest = CheckpointManifest.model_validate({**fields, **changes})
    return CommitRequest(path=f"step-{step}.att-{attempt}", manifest=manifest)


def put(job: TrainingJob, step: int, attempt: int = 1) -> tuple[TrainingJob, CommitReply]:
    status, reply = commit(job, request(step, attempt), attempt, START)
    return job.model_copy(update={"status": status}), reply


def at(job: TrainingJob, attempt: int) -> TrainingJob:
    assert job.status is not None
    return job.model_copy(update={"status": job.status.replace(attempt=attempt)})


def test_commit_enters_and_prunes_the_oldest() -> None:
    job, reply = put(make(), 10)
    assert (reply.committed.step, reply.prune) == (10, ())
    job, _ = put(job, 20)
    job, reply = put(job, 30)
    assert reply.prune == ("step-10.att-1",)
    assert restore_point(job.status) == reply.committed
    assert reply.committed.digest == request(30).manifest.content_hash()


def test_repeated_commit_changes_nothing() -> None:
    job, first = put(make(), 10)
    again, reply = put(job, 10)
    assert again.status == job.status
    assert reply.committed == first.committed


@pytest.mark.parametrize("step", [9, 10])
def test_step_that_is_not_above_the_newest_is_refused(step: int) -> None:
    job, _ = put(make(), 10)
    with pytest.raises(ConflictError):
        commit(job, CommitRequest(path="other", manifest=request(step).manifest), 1, START)


def test_old_attempt_commits_nothing_even_with_a_late_token() -> None:
    job, _ = put(make(), 10)
    job = at(job, 2)
    for token, manifest in ((1, 1), (2, 1), (1, 2), (3, 3)):
        with pytest.raises(StaleEpochError):
            commit(job, request(20, manifest), token, START)
    assert restore_point(job.status) is not None


def test_new_attempt_may_commit_below_a_damaged_newest_and_is_read_first() -> None:
    job, _ = put(make(), 20)
    job, damaged = put(job, 30)
    job, reply = put(at(job, 2), 25, 2)
    assert reply.prune == ("step-20.att-1",)
    assert restore_point(job.status) == reply.committed
    assert restore_point(job.status, (reply.committed.digest,)) == damaged.committed


@pytest.mark.parametrize("changes", [{"job_uid": "other"}, {"world_size": 4}, {"plan_hash": "b" * 64}])
def test_manifest_of_another_job_or_plan_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        commit(make(), request(10, **changes), 1, START)


def test_restore_never_falls_back_to_step_zero_by_itself() -> None:
    """Lightning-AI/pytorch-lightning#688, meta-pytorch/tnt#559."""
    assert restore_point(None) is None
    assert restore_point(make().status) is None
    job, reply = put(make(), 10)
    with pytest.raises(CheckpointCorruptError):
        restore_point(job.status, (reply.committed.digest,))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 50)), max_size=20), st.integers(2, 4))
def test_ledger_laws(commits: list[tuple[int, int]], keep: int) -> None:
    job, on_disk, attempt = make(keep=keep), set[str](), 1
    for wanted, step in commits:
        attempt = max(attempt, wanted)
        job = at(job, attempt)
        before = job.status
        try:
            job, reply = put(job, step, attempt)
        except KuangchaoError:
            assert job.status == before
            continue
        on_disk = (on_disk | {reply.committed.path}) - set(reply.prune)
        assert job.status is not None
        ledger = job.status.checkpoints
        assert len(ledger) <= keep
        assert {c.path for c in ledger} == on_disk
        assert restore_point(job.status) == max(ledger, key=lambda c: (c.attempt, c.step))


class Store(JobStore):
    """A job whose attempt may rise between the read and the write."""

    def __init__(self, job: TrainingJob) -> None:
        self.job: TrainingJob | None = job
        self.race: TrainingJob | None = None

    async def get(self, namespace: str, name: str) -> TrainingJob | None:
        assert (namespace, name) == ("team", "job")
        return self.job

    async def update_status(self, namespace: str, name: str, uid: str, mutate: Mutation) -> TrainingJob:
        assert (namespace, name, uid) == ("team", "job", UID)
        assert self.job is not None
        mutate(self.job)
        self.job = self.race or self.job  # another writer came first: decide again on what is there now
        self.job = self.job.model_copy(update={"status": mutate(self.job)})
        return self.job


def right(op: str, attempt: int = 1) -> Capability:
    return capability(op, att=attempt)


async def test_service_commits_and_restores() -> None:
    store = Store(make())
    service = StateService(store, lambda: START)
    reply = await service.commit_checkpoint(right("state.commit_checkpoint"), request(10))
    assert reply.committed.time == START
    found = await service.restore_point(right("state.restore_point"), RestorePointRequest(attempt=1))
    assert found.checkpoint == reply.committed
    with pytest.raises(StaleEpochError):
        await service.restore_point(right("state.restore_point"), RestorePointRequest(attempt=2))


async def test_attempt_that_rises_during_the_commit_wins() -> None:
    store = Store(make())
    store.race = at(make(), 2)
    with pytest.raises(StaleEpochError):
        await StateService(store, lambda: START).commit_checkpoint(right("state.commit_checkpoint"), request(10))
    assert store.job is not None
    assert store.job.status is not None
    assert store.job.status.checkpoints == ()


async def test_service_assesses_the_current_attempt_only() -> None:
    store = Store(make(attempt=2))
    service = StateService(store, lambda: START)
    report = FaultReport(reason=Reason.EVICTED, attempt=2, failures=(failure(Reason.EVICTED),), pods_alive=False)
    assert (await service.assess(right("state.assess", 2), report)).reason is Reason.EVICTED
    with pytest.raises(ConflictError):
        await service.assess(right("state.assess", 2), report.replace(attempt=1))
    store.job = None
    with pytest.raises(ConflictError):
        await service.assess(right("state.assess", 2), report)
