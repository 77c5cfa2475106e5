"""The inner loop of verification: one row after the other, as fast as Python goes. Says what is wrong."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from pydantic_core import from_json

from kuangchao_contracts.merkle import LEAF, Frontier
from kuangchao_operator.audit import cold
from kuangchao_operator.audit.cold import Row

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
COLUMNS: Final = tuple(cold.COLUMNS)[:-1]
"""All but `body`."""
Problem = Callable[[str], None]


def walk(rows: Iterable[Row], seq: int, head: str, tree: Frontier, problem: Problem) -> tuple[int, str]:
    """Check rows against each other and against their columns, and grow the tree by them.

    `seq` and `head` are number and hash of the record before; those of the last row come back.
    """
    append = tree.append
    for row in rows:
        body, number = body_of(row), int(row[0])
        try:
            stored = from_json(body, allow_inf_nan=False, cache_strings="keys")
            columns, previous = _columns(stored), stored["previous"]
        except (ValueError, KeyError, TypeError):
            problem(f"record {number}: cannot be parsed")
        else:
            if previous != head and number == seq + 1:
                problem(f"record {number}: does not follow from record {seq}, as one of the two was changed")
            if columns != row[:-1]:
                problem(f"record {number}: says otherwise than {_differing(columns, row)}")
        if number != seq + 1:
            problem(
                f"record {number}: record {seq + 1} is missing" if number > seq else f"record {number}: out of order"
            )
        if body is not row[-1]:
            problem(f"record {number}: is not stored as bytes")
        seq, head = number, sha256(body).hexdigest()
        append(sha256(LEAF + body).digest())
    return seq, head


def body_of(row: Row) -> bytes:
    """The bytes of a row, even where somebody put text in their place."""
    return row[-1] if isinstance(row[-1], bytes) else str(row[-1]).encode()


def _columns(stored: Any) -> Row:
    """The indexed columns as the record itself gives them (see `schema.row`)."""
    record = stored["record"]
    return (
        stored["seq"],
        record["opid"],
        (datetime.fromisoformat(record["ts"]) - EPOCH) // MICROSECOND,
        record["stage"],
        record["op"],
        record["resource"],
        record["subject"],
        record["job"],
        record["decision"],
    )


def _differing(columns: Row, row: Row) -> str:
    names = [name for name, a, b in zip(COLUMNS, columns, row, strict=False) if a != b]
    return f"its column {', '.join(names)}"
