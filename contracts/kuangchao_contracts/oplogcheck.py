"""Reads operation logs back and checks them against what the audit store has pinned. Writes nothing, trusts nothing."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import StorageError
from kuangchao_contracts.oplog import GENESIS

MAX_LINE: Final = 16_384
MAX_NUMBER: Final = 2**63 - 1
Pin = tuple[int, str]
"""Count and head that the store holds."""
Plain = Annotated[str, Field(max_length=512, pattern="^[ -~]*$")]
"""As a gate writes it. A log is its rank's word: nothing in it may steer the terminal of whoever reads it."""


class LogLine(Contract):
    """One call: with the hash of its request, or the reason of its refusal."""

    n: Annotated[int, Field(ge=1, le=MAX_NUMBER)]
    t: Annotated[int, Field(ge=0, le=MAX_NUMBER)]
    """Nanoseconds since 1970 by the clock of the rank's machine."""
    op: Plain
    res: Plain
    sub: Plain
    req: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    deny: Plain | None = None
    did: Plain | None = None
    """What the last call before this line did that was not refused: of an update, the gradients' norm and the number of
    elements."""
    grace: bool = False
    """The call was allowed though its lease had expired: nobody could renew it."""
    prev: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class LogBrokenError(StorageError):
    """An operation log is not the one that was pinned. The message names file and line."""


class LogTornError(LogBrokenError):
    """The last line of a log is not whole."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A log that meets every pin. `tail` lines follow the highest one: they follow from each other, and that is all."""

    pinned: int
    tail: int
    head: str
    fault: str = ""
    """What ends the tail before the end of the file."""
    torn: bool = False
    """The fault is half a last line, as a process leaves it that was killed."""


def _ignore(line: LogLine) -> None:
    del line


def verify_oplog(parts: Sequence[Path], pins: Iterable[Pin] = (), see: Callable[[LogLine], None] = _ignore) -> Verified:
    """Check a log up to the highest pin, and tell `see` of each line that follows from the one before.

    Raises LogBrokenError, naming file and line, when a line up to there is missing, changed, or not the pinned one.
    """
    left = sorted({pin for pin in pins if pin != (0, GENESIS)})
    pinned = left[-1][0] if left else 0
    count, head, place = 0, GENESIS, "no file"
    try:
        for place, line, head in _follow(parts):
            count = line.n
            while left and left[0][0] <= count:
                if left[0] != (count, head):
                    raise LogBrokenError(f"{place}: is not the line that was committed as entry {left[0][0]}")
                left.pop(0)
            see(line)
    except LogBrokenError as error:
        if left:
            raise
        return Verified(pinned, count - pinned, head, str(error), torn=isinstance(error, LogTornError))
    if left:
        raise LogBrokenError(f"{place}: is the last one, with entry {count}; {pinned} entries are committed")
    return Verified(pinned, count - pinned, head)


def _follow(parts: Sequence[Path]) -> Iterator[tuple[str, LogLine, str]]:
    """(file and line, the line, its hash) of each line that follows from the one before."""
    count, head = 0, GENESIS
    for path in parts:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(MAX_LINE):
                number += 1
                place, line = f"{path.name} line {number}", raw.removesuffix(b"\n")
                if line == raw:
                    raise LogTornError(f"{place}: cut off")
                entry = _parsed(place, line)
                if entry.n != count + 1:
                    raise LogBrokenError(f"{place}: says that it is entry {entry.n}, not {count + 1}")
                if entry.prev != head:
                    raise LogBrokenError(f"{place}: does not follow from the line before it as that is now")
                count, head = entry.n, hashlib.sha256(line).hexdigest()
                yield place, entry, head


def _parsed(place: str, line: bytes) -> LogLine:
    try:
        return LogLine.model_validate_json(line)
    except ValidationError:
        raise LogBrokenError(f"{place}: is not a log entry") from None
