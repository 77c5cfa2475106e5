"""Notes on their way from an agent to the store: added up while they wait, unchanged while they are on the way."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts.run import RankNote, RankNotes
from kuangchao_worker.agent.notes import MAX_KINDS, PER_BATCH, NoteQueue


def note(**changes: Any) -> RankNote:
    fields = {
        "rank": 0, "attempt": 1, "op": "state.save", "resource": "team/jobs/job", "subject": "rank:team/job/p",
        "reason": "StaleEpoch", "count": 1, "first": datetime(2026, 1, 1, tzinfo=UTC), **changes,
    }  # fmt: skip
    return RankNote.model_validate(fields)


def test_equal_notes_are_added_up_until_they_are_sent() -> None:
    queue = NoteQueue()
    assert queue.empty and queue.batch() is None
    for count in (1, 2, 3):
        queue.add(note(count=count))
    sent = queue.batch()
    assert sent is not None
    assert [n.count for n in sent.notes] == [6]
    queue.add(note(count=10))
    assert queue.batch() == sent, "until it is stored the same batch is sent again"
    queue.stored(None)
    queue.stored(0)
    assert queue.batch() == sent
    queue.stored(sent.seq)
    following = queue.batch()
    assert following is not None
    assert (following.seq, following.notes[0].count) == (sent.seq + 1, 10)
    queue.stored(following.seq)
    assert queue.empty


def test_kinds_are_bounded_and_no_call_goes_uncounted() -> None:
    queue = NoteQueue()
    for rank in range(MAX_KINDS * 2):
        queue.add(note(rank=rank % 64, subject=f"s{rank}"))
    total = batches = 0
    while (batch := queue.batch()) is not None:
        assert len(batch.notes) <= PER_BATCH
        total, batches = total + sum(n.count for n in batch.notes), batches + 1
        queue.stored(batch.seq)
    assert total == MAX_KINDS * 2
    assert batches <= MAX_KINDS // PER_BATCH + 1


@given(st.lists(st.sampled_from(["add", "send", "answer", "lost"]), max_size=60))
def test_every_note_is_stored_exactly_once_whatever_is_lost(script: list[str]) -> None:
    """`lost`: the batch arrives and its answer does not."""
    queue, stored, seen, added = NoteQueue(), 0, 0, 0

    def arrive(batch: RankNotes) -> None:
        nonlocal stored, seen
        if batch.seq > seen:
            seen, stored = batch.seq, stored + sum(n.count for n in batch.notes)

    for number, step in enumerate(script):
        if step == "add":
            added += 1
            queue.add(note(rank=number % 3))
            continue
        batch = queue.batch()
        if batch is not None and step != "send":
            arrive(batch)
            if step == "answer":
                queue.stored(batch.seq)
    while (batch := queue.batch()) is not None:
        arrive(batch)
        queue.stored(batch.seq)
    assert stored == added
