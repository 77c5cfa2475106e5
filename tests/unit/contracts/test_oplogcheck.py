"""Reading an operation log back: no line can be changed, removed or put in unseen below what the store has pinned."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kuangchao_contracts.oplog import GENESIS
from kuangchao_contracts.oplogcheck import LogBrokenError, Verified, verify_oplog
from kuangchao_contracts.oplogfile import part_name, parts
from tests.unit.contracts.oplogs import write

LINES = 20


@pytest.fixture
def pin(tmp_path: Path) -> tuple[int, str]:
    log = write(tmp_path, LINES)
    return log.count, log.head


def check(directory: Path, *pins: tuple[int, str]) -> Verified:
    return verify_oplog(parts(directory, 1, 0), pins)


TAMPER: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "changed": lambda lines: [*lines[:5], lines[5].replace(b"rank:", b"root:"), *lines[6:]],
    "hash changed": lambda lines: [*lines[:5], lines[5].replace(b'"req":"', b'"req":"0'), *lines[6:]],
    "removed": lambda lines: [*lines[:5], *lines[6:]],
    "first removed": lambda lines: lines[1:],
    "last removed": lambda lines: lines[:-1],
    "swapped": lambda lines: [*lines[:5], lines[6], lines[5], *lines[7:]],
    "doubled": lambda lines: [*lines[:6], lines[5], *lines[6:]],
    "inserted": lambda lines: [*lines[:5], b'{"n":6,"prev":"x"}\n', *lines[5:]],
    "torn": lambda lines: [*lines[:-1], lines[-1][:10]],
    "not JSON": lambda lines: [*lines[:5], b"hello\n", *lines[5:]],
    "grace mark removed": lambda lines: [*lines[:5], lines[5].replace(b',"prev', b',"grace":false,"prev'), *lines[6:]],
    "emptied": lambda lines: [],
}


@pytest.mark.parametrize("tamper", TAMPER.values(), ids=TAMPER)
def test_tampering_is_found_and_placed(
    tmp_path: Path, pin: tuple[int, str], tamper: Callable[..., list[bytes]]
) -> None:
    path = tmp_path / part_name(1, 0)
    path.write_bytes(b"".join(tamper(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(LogBrokenError, match=r"no file|att-1\.rank-0\.jsonl line \d+: "):
        check(tmp_path, pin)


def test_every_single_flipped_byte_is_found(tmp_path: Path, pin: tuple[int, str]) -> None:
    """Each byte of two lines in the middle and of the last one, so of every class: braces, names, digits, hashes."""
    path = tmp_path / part_name(1, 0)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    middle = sum(map(len, lines[:9]))
    places = [*range(middle, middle + len(lines[9]) + len(lines[10])), *range(len(whole) - len(lines[-1]), len(whole))]
    for place in places:
        raw = bytearray(whole)
        raw[place] ^= 1
        path.write_bytes(raw)
        with pytest.raises(LogBrokenError, match=r"line \d+: "):
            check(tmp_path, pin)
    path.write_bytes(whole)
    assert check(tmp_path, pin) == Verified(LINES, 0, pin[1])


def test_a_prefix_is_checked_and_the_rest_is_counted(tmp_path: Path, pin: tuple[int, str]) -> None:
    seen: list[int] = []
    heads = [line.prev for line in _lines(tmp_path)]
    pins = [(5, heads[5]), (12, heads[12]), (0, GENESIS)]
    found = verify_oplog(parts(tmp_path, 1, 0), pins, lambda line: seen.append(line.n))
    assert found == Verified(12, 8, pin[1])
    assert seen == list(range(1, LINES + 1))


def _lines(directory: Path) -> list:
    found: list = []
    verify_oplog(parts(directory, 1, 0), see=found.append)
    return found


def test_a_tail_that_is_torn_is_a_loss_and_no_lie(tmp_path: Path) -> None:
    """A rank that was killed leaves half a line; the store has pinned nothing of it."""
    heads = [line.prev for line in (write(tmp_path, LINES), _lines(tmp_path))[1]]
    path = tmp_path / part_name(1, 0)
    path.write_bytes(path.read_bytes()[:-30])
    found = check(tmp_path, (10, heads[10]))
    assert (found.pinned, found.tail) == (10, LINES - 11)
    assert found.fault == "att-1.rank-0.jsonl line 20: cut off"


@pytest.mark.parametrize("pinned", [(LINES + 1, "0" * 64), (3, "0" * 64), (0, "1" * 64)])
def test_another_head_or_count_than_the_logs_is_refused(tmp_path: Path, pin: tuple[int, str], pinned: tuple) -> None:
    with pytest.raises(LogBrokenError):
        check(tmp_path, pinned)


def test_two_heads_for_one_count_cannot_both_be_right(tmp_path: Path, pin: tuple[int, str]) -> None:
    with pytest.raises(LogBrokenError):
        check(tmp_path, pin, (pin[0], "f" * 64))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    log = write(tmp_path, 500, lines_per_part=100)
    found = parts(tmp_path, 1, 0)
    assert len(found) > 1
    found[1].unlink()
    with pytest.raises(LogBrokenError, match=r"att-1\.rank-0\.jsonl line \d+: is the last one"):
        check(tmp_path, (log.count, log.head))


def test_a_log_of_another_rank_in_its_place_is_found(tmp_path: Path, pin: tuple[int, str]) -> None:
    write(tmp_path, LINES, rank=1)
    (tmp_path / part_name(1, 1)).replace(tmp_path / part_name(1, 0))
    with pytest.raises(LogBrokenError, match="not the line that was committed"):
        check(tmp_path, pin)


@pytest.mark.parametrize(
    "change",
    [
        {"op": "state.save\x1b[2J"},
        {"sub": "rank:a\nproblem: none"},
        {"res": "r" * 513},
        {"deny": "\u202e"},
        {"t": 2**63},
    ],
    ids=str,
)
def test_a_rank_cannot_put_words_on_the_readers_terminal(tmp_path: Path, change: dict[str, Any]) -> None:
    """Its own lines chain well and are pinned by nothing yet; what no gate would write ends them."""
    log = write(tmp_path, LINES)
    line = {"n": LINES + 1, "t": 1, "op": "o", "res": "r", "sub": "s", "deny": "StaleEpoch", "prev": log.head} | change
    with (tmp_path / part_name(1, 0)).open("a") as file:
        file.write(json.dumps(line) + "\n")
    found = check(tmp_path, (log.count, log.head))
    assert (found.tail, found.fault) == (0, f"att-1.rank-0.jsonl line {LINES + 1}: is not a log entry")
