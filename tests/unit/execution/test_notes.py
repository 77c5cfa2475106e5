"""What the gates of ranks have noted becomes records: each once, with its count, and nobody else can be accused."""

from typing import Any

import pytest

from kuangchao_contracts import names
from kuangchao_contracts.audit import Decision, Stage
from kuangchao_contracts.errors import FutureEpochError, RankMismatchError
from kuangchao_contracts.run import Directive, HeartbeatReply, HeartbeatRequest, RankNote, RankNotes
from kuangchao_operator.audit.coalesce import VERBATIM, DenialCounter
from tests.unit.execution.test_service import RESOURCE, Bench, request, worker
from tests.unit.execution.world import START, UID

SUBJECT = f"rank:team/job/{names.pod_name('job', UID, 0, 1)}"


def note(**changes: Any) -> RankNote:
    fields = {
        "rank": 2,
        "attempt": 1,
        "op": "state.save",
        "resource": RESOURCE,
        "subject": SUBJECT,
        "reason": "StaleEpoch",
        "count": 3,
        "first": START,
        "jti": "j" * 22,
        **changes,
    }
    return RankNote.model_validate(fields)


def beat(seq: int, *notes: RankNote, **changes: Any) -> HeartbeatRequest:
    """A heartbeat of pod 1, whose ranks are 2 and 3."""
    return HeartbeatRequest(join=request(1, **changes), ranks=(), notes=RankNotes(seq=seq, notes=notes))


async def tell(bench: Bench, heartbeat: HeartbeatRequest, **changes: Any) -> HeartbeatReply:
    return await bench.service.heartbeat(worker(1, **changes), heartbeat)


async def test_a_denial_is_a_record_with_its_exact_count() -> None:
    bench = Bench()
    reply = await tell(bench, beat(1, note()))
    assert reply.notes_stored == 1
    (record,) = bench.sink.kept
    assert (record.stage, record.decision, record.reason, record.count) == (Stage.DENY, Decision.DENY, "StaleEpoch", 3)
    assert (record.process, record.op, record.resource, record.subject) == ("rank/2", "state.save", RESOURCE, SUBJECT)
    assert (record.job_uid, record.attempt, record.jti, record.ts) == (UID, 1, "j" * 22, START)
    assert f"first at {START.isoformat()}" in record.detail


async def test_calls_in_grace_are_records_that_say_so() -> None:
    bench = Bench()
    await tell(bench, beat(1, note(reason="LeaseOverdue", allowed=True, count=40)))
    (record,) = bench.sink.kept
    assert (record.stage, record.decision, record.count) == (Stage.SYSTEM, Decision.ALLOW, 40)


async def test_a_repeated_batch_counts_once() -> None:
    """The answer was lost, so the agent sends the same again."""
    bench = Bench()
    for _ in range(3):
        assert (await tell(bench, beat(1, note(), note(rank=3)))).notes_stored == 1
    assert (await tell(bench, beat(2, note()))).notes_stored == 2
    assert [(r.process, r.count) for r in bench.sink.kept] == [("rank/2", 3), ("rank/3", 3), ("rank/2", 3)]
    assert len({record.opid for record in bench.sink.kept}) == 3


async def test_a_restarted_operator_gives_a_repeated_batch_the_same_operation_id() -> None:
    first, second = Bench(), Bench()
    for bench in (first, second):
        await tell(bench, beat(7, note()))
    assert first.sink.kept[0].opid == second.sink.kept[0].opid


async def test_a_new_pod_counts_from_one_again() -> None:
    bench = Bench()
    await tell(bench, beat(5, note()))
    later = worker(1, attempt=2, incarnation=1)
    fresh = request(1, attempt=2, incarnation=1, pod=later.claims.pod)
    heartbeat = HeartbeatRequest(join=fresh, ranks=(), notes=RankNotes(seq=1, notes=(note(attempt=2),)))
    await bench.service.heartbeat(later, heartbeat)
    assert [record.attempt for record in bench.sink.kept] == [1, 2]


async def test_what_was_noted_in_the_attempt_before_is_stored_with_the_next_one() -> None:
    bench = Bench()
    reply = await tell(bench, beat(1, note(attempt=1)), attempt=2)
    assert (reply.directive, reply.notes_stored) == (Directive.REJOIN, 1)
    assert bench.sink.kept[0].attempt == 1


async def test_a_worker_speaks_for_its_own_ranks_only() -> None:
    bench = Bench()
    with pytest.raises(RankMismatchError):
        await tell(bench, beat(1, note(), note(rank=4)))
    with pytest.raises(FutureEpochError):
        await tell(bench, beat(1, note(attempt=2)))
    assert bench.sink.kept == []


@pytest.mark.parametrize(
    "subject",
    ["layer:state", "rank:other/job/pod-0", "rank:team/job2/pod-0", "team/job/x", "", "rank:team/job", SUBJECT + "x"],
)
async def test_a_worker_accuses_nobody_outside_its_job(subject: str) -> None:
    bench = Bench()
    await tell(bench, beat(1, note(subject=subject, resource="other/jobs/job", op="no such\noperation")))
    (record,) = bench.sink.kept
    assert (record.subject, record.resource, record.layer) == ("unverified", RESOURCE, "unknown")
    assert "on other/jobs/job" in record.detail
    assert record.op == "unknown"
    assert "operation no such?operation" in record.detail


async def test_words_that_a_worker_makes_up_are_counted_as_one() -> None:
    """Else each would be a record of its own, and one pod could fill the store for all."""
    bench, counter = Bench(), DenialCounter(lambda: 0.0)
    for seq in range(1, 5):
        made_up = (
            note(
                op=f"o{seq}x{number}",
                reason="R" + "S" * (number - 1) + "ABCD"[seq - 1],
                subject=f"{SUBJECT}{seq}.{number}",
            )
            for number in range(1, 63)
        )
        await tell(bench, beat(seq, *made_up))
    assert len(bench.sink.kept) == 4 * 62
    assert sum(counter.admit(record) for record in bench.sink.kept) == VERBATIM
    (rest,) = counter.flush()
    assert rest.count == 3 * (4 * 62 - VERBATIM)


async def test_a_heartbeat_without_notes_says_nothing_of_them() -> None:
    """So that an agent of an older release can read the answer."""
    bench = Bench()
    reply = await tell(bench, HeartbeatRequest(join=request(1), ranks=()))
    assert "notesStored" not in reply.wire()


async def test_notes_are_not_kept_with_the_newest_heartbeat() -> None:
    bench = Bench()
    await tell(bench, beat(1, note()))
    assert bench.registry.agents(UID)[0].heartbeat.notes is None
