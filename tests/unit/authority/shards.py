"""Stores of several days for tests of what happens to a day when it gets old."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from kuangchao_contracts.audit import AuditPage, AuditQuery, AuditRecord
from kuangchao_operator.audit.query import query
from kuangchao_operator.audit.schema import SHARD_OP
from kuangchao_operator.audit.store import AuditStore, Entry
from tests.unit.authority.kit import NOW, Clock
from tests.unit.authority.records import record

DAY = 86_400.0


def day(number: int = 0) -> date:
    """The UTC day of the clock's start, or one after it."""
    return datetime.fromtimestamp(NOW + number * DAY, UTC).date()


def fill(directory: Path, per_day: list[list[AuditRecord]] | list[int]) -> None:
    """Days that follow one another, each with given records or so many of them."""
    clock = Clock()
    store = AuditStore(directory, clock)
    for number, wanted in enumerate(per_day):
        clock.now = NOW + number * DAY
        items = _some(number, wanted) if isinstance(wanted, int) else wanted
        for item in items:
            store.append([Entry(item)])
    store.close()


def _some(number: int, count: int) -> list[AuditRecord]:
    start = number * int(DAY)
    return [record(start + offset, subject=f"agent:{offset % 3}") for offset in range(count)]


def pages(directory: Path, namespace: str | None = None, **filters: Any) -> Iterator[AuditPage]:
    """All pages of an answer."""
    after: int | None = filters.pop("after", 0)
    while after is not None:
        page = query(directory, AuditQuery(**filters, after=after), namespace)
        yield page
        after = page.next_after


def numbers(directory: Path, namespace: str | None = None, **filters: Any) -> list[int]:
    """Numbers of the records that a query finds, over all its pages; the first record of a day has none."""
    found = (item.record for page in pages(directory, namespace, **filters) for item in page.records)
    return [int(record.opid.removeprefix("op-")) for record in found if record.op != SHARD_OP]


class StoppedError(BaseException):
    """The process ends here."""


def stop(step: Callable[..., Any], nth: int, after: bool) -> Callable[..., Any]:
    """The step, with the process ending before or after its nth call."""
    calls = 0

    def stopping(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and not after:
            raise StoppedError
        result = step(*arguments)
        if calls == nth:
            raise StoppedError
        return result

    return stopping
