"""The rank's operation log: exact counts, whole lines in files, and notes of what the store must hear."""

import sys
import threading
from pathlib import Path

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import Decision, Stage
from kuangchao_contracts.oplog import GENESIS, MAX_NOTES, OperationLog
from kuangchao_contracts.oplogcheck import LogLine, Verified, verify_oplog
from kuangchao_contracts.oplogfile import BUFFER_BYTES, LogFile, parse_name, part_name, parts
from kuangchao_contracts.ports.state import SubmitGradients
from tests.unit.authority.kit import RESOURCE
from tests.unit.contracts.oplogs import SUBJECT, denial, fill, write


def lines(directory: Path, attempt: int = 1, rank: int = 0) -> list[LogLine]:
    found: list[LogLine] = []
    verify_oplog(parts(directory, attempt, rank), see=found.append)
    return found


def test_head_and_count_are_those_of_the_file(tmp_path: Path) -> None:
    with OperationLog() as log:
        log.keep_in(LogFile(tmp_path, 1, 0))
        assert (log.count, log.head) == (0, GENESIS)
        fill(log, 1, 3)
        pinned = log.pin()
    assert str(pinned) == f"3:{log.head}"
    assert verify_oplog(parts(tmp_path, 1, 0)) == Verified(0, 3, log.head)
    assert [line.n for line in lines(tmp_path)] == [1, 2, 3]


def test_a_log_without_a_file_has_the_same_head(tmp_path: Path) -> None:
    heads = []
    for file in (None, LogFile(tmp_path, 1, 0)):
        with OperationLog(clock_ns=lambda: 7) as log:
            log.keep_in(file)
            fill(log, 1, 3)
            heads.append(log.head)
            assert log.pin().kept is (file is not None)
    assert heads[0] == heads[1] != GENESIS


def test_the_head_depends_on_every_part_of_a_call() -> None:
    def head(op: str = "state.save", resource: str = RESOURCE, subject: str = SUBJECT, step: int = 1) -> str:
        log = OperationLog(clock_ns=lambda: 7)
        log.step(op, resource, subject, SubmitGradients(step_id=step))
        return log.head

    heads = {head(), head(op="state.restore"), head(resource="a/jobs/b"), head(subject="rank:x"), head(step=2)}
    assert len(heads) == 5
    assert head() == head()


# ---- files


def test_calls_before_there_is_a_file_are_in_it(tmp_path: Path) -> None:
    """A rank may not touch the volume before it knows that the directory is its job's."""
    with OperationLog() as log:
        fill(log, 1, 2)
        assert not list(tmp_path.iterdir())
        log.keep_in(LogFile(tmp_path / "oplog", 4, 7))
        fill(log, 3, 3)
    assert [line.n for line in lines(tmp_path / "oplog", 4, 7)] == [1, 2, 3]


def test_a_call_touches_the_disk_only_when_the_buffer_is_full(tmp_path: Path) -> None:
    with OperationLog() as log:
        log.keep_in(LogFile(tmp_path, 1, 0))
        path = tmp_path / part_name(1, 0)
        fill(log, 1, 10)
        assert path.stat().st_size == 0
        fill(log, 11, 10 + BUFFER_BYTES // 200)
        assert path.stat().st_size >= BUFFER_BYTES


def test_the_chain_runs_on_over_parts(tmp_path: Path) -> None:
    with OperationLog() as log:
        log.keep_in(LogFile(tmp_path, 1, 0, lines_per_part=10))
        for first in range(1, 50, 7):
            fill(log, first, first + 6)
            pinned = log.pin()
            pinned.sync()
    names = [path.name for path in parts(tmp_path, 1, 0)]
    assert names == [part_name(1, 0, part) for part in range(len(names))]
    assert len(names) > 3
    assert verify_oplog(parts(tmp_path, 1, 0), [(log.count, log.head)]).pinned == log.count == 49


def test_pins_name_every_part_that_has_grown(tmp_path: Path) -> None:
    with OperationLog() as log:
        log.keep_in(LogFile(tmp_path, 1, 0, lines_per_part=5))
        fill(log, 1, 5)
        assert [path.name for path in log.pin().files] == [part_name(1, 0), part_name(1, 0, 1)]
        fill(log, 6, 7)
        assert [path.name for path in log.pin().files] == [part_name(1, 0, 1)]


def test_a_file_that_cannot_be_written_leaves_head_and_count(tmp_path: Path) -> None:
    (tmp_path / "oplog").write_text("a file where a directory should be")
    with OperationLog() as log:
        log.keep_in(LogFile(tmp_path / "oplog", 1, 0))
        fill(log, 1, 3)
        pinned = log.pin()
    assert (pinned.count, pinned.head, pinned.kept) == (3, log.head, False)


def test_a_full_disk_ends_the_file_and_not_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OperationLog() as log:
        log.keep_in(LogFile(tmp_path, 1, 0))
        fill(log, 1, 3)
        kept = log.pin()

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("os.write", full)
            fill(log, 4, 6)
            assert not log.pin().kept
        fill(log, 7, 9)
        assert (log.count, log.pin().kept) == (9, False), "a log with a hole is worth less than one that ends"
    assert verify_oplog(parts(tmp_path, 1, 0), [(kept.count, kept.head)]) == Verified(3, 0, kept.head)


def test_a_file_that_was_there_before_is_put_aside_and_not_continued(tmp_path: Path) -> None:
    """Nobody but the rank itself may have written it: what it says is not this rank's word."""
    (tmp_path / part_name(1, 0)).write_text("planted\n")
    write(tmp_path, 3)
    assert [line.n for line in lines(tmp_path)] == [1, 2, 3]
    (aside,) = tmp_path.glob("*.found-*")
    assert aside.read_text() == "planted\n"


@pytest.mark.parametrize("name", ["att-1.rank-0.jsonl", "att-12.rank-16383.jsonl.3"])
def test_names_of_parts_are_read_back(name: str) -> None:
    found = parse_name(name)
    assert found is not None
    assert part_name(*found) == name


@pytest.mark.parametrize(
    "name", ["att-1.rank-0.jsonl.found-1", "att-.rank-0.jsonl", "metrics.jsonl", "att-1.rank-0.json"]
)
def test_other_files_are_no_parts(name: str) -> None:
    assert parse_name(name) is None


# ---- notes


def test_denials_are_logged_and_handed_on_once_with_exact_counts(tmp_path: Path) -> None:
    with OperationLog() as log:
        log.keep_in(LogFile(tmp_path, 1, 0))
        for _ in range(1_000):
            log.step_denied(denial())
        log.step_denied(denial("RankMismatch"))
        assert {r.reason: r.count for r in log.take_notes()} == {"StaleEpoch": 1_000, "RankMismatch": 1}
        assert log.take_notes() == ()
    assert [line.deny for line in lines(tmp_path)] == ["StaleEpoch"] * 1_000 + ["RankMismatch"]


def test_a_denial_on_another_thread_breaks_no_chain(tmp_path: Path) -> None:
    """Code of a task has threads of its own, and is refused there as well."""
    count, interval = 2_000, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with OperationLog() as log:
            log.keep_in(LogFile(tmp_path, 1, 0))
            thread = threading.Thread(target=lambda: [log.step_denied(denial()) for _ in range(count)])
            thread.start()
            fill(log, 1, count)
            thread.join()
            assert sum(note.count for note in log.take_notes()) == count
    finally:
        sys.setswitchinterval(interval)
    assert verify_oplog(parts(tmp_path, 1, 0), [(log.count, log.head)]) == Verified(2 * count, 0, log.head)


def test_kinds_of_denials_are_bounded_and_none_is_lost() -> None:
    log = OperationLog()
    for number in range(1_000):
        log.step_denied(denial(f"R{number}"))
    denials = log.take_notes()
    assert len(denials) == MAX_NOTES + 1
    assert sum(r.count for r in denials) == 1_000


def test_calls_in_grace_are_marked_and_noted(tmp_path: Path) -> None:
    with OperationLog() as log:
        log.keep_in(LogFile(tmp_path, 1, 0))
        fill(log, 1, 2)
        log.grace(True)
        fill(log, 3, 5)
        log.grace(False)
        fill(log, 6, 6)
        (note,) = log.take_notes()
    assert [line.grace for line in lines(tmp_path)] == [False, False, True, True, True, False]
    assert (note.reason, note.count, note.decision, note.stage) == ("LeaseOverdue", 3, Decision.ALLOW, Stage.SYSTEM)
    assert (note.op, note.subject) == ("state.submit_gradients", SUBJECT)


async def test_control_calls_have_no_place_in_a_rank() -> None:
    log = OperationLog()
    with pytest.raises(e.AuditUnavailableError):
        await log.durable(denial())
    with pytest.raises(e.AuditUnavailableError):
        log.best_effort(denial())
