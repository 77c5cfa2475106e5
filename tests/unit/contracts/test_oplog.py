"""The rank's operation log: exact counts, and no line can be changed, removed or put in unseen."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditRecord, Decision, Stage, now
from kuangchao_contracts.oplog import GENESIS, OperationLog, verify_oplog
from kuangchao_contracts.ports.state import SubmitGradients
from tests.unit.authority.kit import RESOURCE

SUBJECT = "rank:team-a/digits/w-0"


def fill(log: OperationLog, first: int, last: int) -> None:
    for step in range(first, last + 1):
        log.step("state.submit_gradients", RESOURCE, SUBJECT, SubmitGradients(step_id=step))


def denial(reason: str = "StaleEpoch") -> AuditRecord:
    return AuditRecord(
        ts=now(), opid="1", stage=Stage.DENY, layer="state", op="state.save", resource=RESOURCE, subject=SUBJECT,
        decision=Decision.DENY, reason=reason,
    )  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with OperationLog(tmp_path / "rank-0.jsonl") as log:
        fill(log, 1, 20)
    return tmp_path / "rank-0.jsonl"


def test_head_and_count_are_those_of_the_file(tmp_path: Path) -> None:
    log = OperationLog(tmp_path / "log")
    assert (log.count, log.head) == (0, GENESIS)
    fill(log, 1, 3)
    log.flush()
    assert verify_oplog(tmp_path / "log") == (3, log.head)
    log.close()


def test_a_log_without_a_file_has_the_same_head(tmp_path: Path) -> None:
    heads = []
    for path in (None, tmp_path / "log"):
        with OperationLog(path, clock_ns=lambda: 7) as log:
            fill(log, 1, 3)
            heads.append(log.head)
    assert heads[0] == heads[1] != GENESIS


def test_the_head_depends_on_every_part_of_a_call() -> None:
    def head(op: str = "state.save", resource: str = RESOURCE, subject: str = SUBJECT, step: int = 1) -> str:
        log = OperationLog(clock_ns=lambda: 7)
        log.step(op, resource, subject, SubmitGradients(step_id=step))
        return log.head

    heads = {head(), head(op="state.restore"), head(resource="a/jobs/b"), head(subject="rank:x"), head(step=2)}
    assert len(heads) == 5
    assert head() == head()


def test_a_log_goes_on_after_a_restart(path: Path) -> None:
    with OperationLog(path) as log:
        assert log.count == 20
        fill(log, 21, 22)
    assert verify_oplog(path)[0] == 22


TAMPER: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "changed": lambda lines: [*lines[:5], lines[5].replace(b"rank:", b"root:"), *lines[6:]],
    "hash changed": lambda lines: [*lines[:5], lines[5].replace(b'"req":"', b'"req":"0'), *lines[6:]],
    "removed": lambda lines: [*lines[:5], *lines[6:]],
    "first removed": lambda lines: lines[1:],
    "swapped": lambda lines: [*lines[:5], lines[6], lines[5], *lines[7:]],
    "doubled": lambda lines: [*lines[:6], lines[5], *lines[6:]],
    "inserted": lambda lines: [*lines[:5], b'{"n":6,"prev":"x"}\n', *lines[5:]],
    "torn": lambda lines: [*lines[:-1], lines[-1][:10]],
    "not JSON": lambda lines: [*lines[:5], b"hello\n", *lines[5:]],
}


@pytest.mark.parametrize("tamper", TAMPER.values(), ids=TAMPER)
def test_tampering_is_found_and_placed(path: Path, tamper: Callable[[list[bytes]], list[bytes]]) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(tamper(lines)))
    with pytest.raises(e.StorageError, match=r"line \d+"):
        verify_oplog(path)
    with pytest.raises(e.StorageError):
        OperationLog(path)


def test_a_cut_end_shows_in_the_count_and_head(path: Path) -> None:
    whole = verify_oplog(path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert verify_oplog(path) != whole


def test_denials_are_logged_and_handed_on_once_with_exact_counts(path: Path) -> None:
    with OperationLog(path) as log:
        for _ in range(1_000):
            log.step_denied(denial())
        log.step_denied(denial("RankMismatch"))
        assert log.count == 1_021
        assert {r.reason: r.count for r in log.take_denials()} == {"StaleEpoch": 1_000, "RankMismatch": 1}
        assert log.take_denials() == ()
    assert verify_oplog(path)[0] == 1_021


def test_kinds_of_denials_are_bounded_and_none_is_lost() -> None:
    log = OperationLog()
    for number in range(1_000):
        log.step_denied(denial(f"R{number}"))
    denials = log.take_denials()
    assert len(denials) == 257
    assert sum(r.count for r in denials) == 1_000


async def test_control_calls_have_no_place_in_a_rank() -> None:
    log = OperationLog()
    with pytest.raises(e.AuditUnavailableError):
        await log.durable(denial())
    with pytest.raises(e.AuditUnavailableError):
        log.best_effort(denial())
