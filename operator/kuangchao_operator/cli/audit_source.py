"""Where the audit commands read records from: an audit directory of this machine, or governance. Reads only."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kuangchao_contracts.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kuangchao_contracts.audit import AuditPage, AuditQuery, StoredRecord

    Ask = Callable[[AuditQuery], AuditPage]


def existing(directory: Path | None) -> Path | None:
    """The directory, if one is given. Raises InvalidInputError when there is none of that name."""
    if directory is not None and not directory.is_dir():
        raise InvalidInputError("--directory", str(directory), "is not a directory", "runs/<job>-<time>/audit")
    return directory


@contextmanager
def asking(directory: Path | None, context: str | None, release_namespace: str) -> Iterator[Ask]:
    """Answers one page of a query: from the directory, or without one from the cluster's governance."""
    if directory is not None:
        from kuangchao_operator.audit.query import query

        yield lambda wanted: query(directory, wanted)
        return
    from kuangchao_operator.cli.audit_commands import governance, page_of
    from kuangchao_operator.cli.cluster import Cluster

    with governance(Cluster(context), release_namespace) as port:
        yield lambda wanted: page_of(port, wanted)


def records(ask: Ask, wanted: AuditQuery) -> Iterator[StoredRecord]:
    """All records that match, page by page; a long time in pieces that one query may span."""
    from kuangchao_operator.cli.audit_commands import pieces

    for query in pieces(wanted, datetime.now(UTC)):
        after: int | None = 0
        while after is not None:
            page = ask(query.replace(after=after))
            yield from page.records
            after = page.next_after
