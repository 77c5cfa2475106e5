"""Files that options and arguments name: read and written with errors that name the option and the path.

Never holds what a file says; who reads it judges that.
"""

import sys
from contextlib import nullcontext
from pathlib import Path

from kuangchao_contracts.errors import InvalidInputError

ARGUMENT = "FILE"
"""What a command calls the one file that it is about."""
STDIN = "-"
MOST_BYTES = 64 * 2**20
"""What nobody writes by hand; a device that never ends is no file."""


def read_bytes(option: str, name: str | Path) -> bytes:
    """All of a file, or of standard input for `-`. Raises InvalidInputError."""
    try:
        with nullcontext(sys.stdin.buffer) if str(name) == STDIN else Path(name).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise _refused(option, name, error) from None
    if len(raw) > MOST_BYTES:
        raise InvalidInputError(option, str(name), "is too large", f"{MOST_BYTES} bytes")
    return raw


def read_text(option: str, name: str | Path) -> str:
    """The same as text. Raises InvalidInputError."""
    return as_text(option, name, read_bytes(option, name))


def as_text(option: str, name: str | Path, raw: bytes) -> str:
    """The text of a file, without the mark that some editors begin it with. Raises InvalidInputError."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInputError(option, str(name), f"is not UTF-8 text at byte {error.start}") from None


def write_text(option: str, name: str, text: str) -> None:
    """Write a result. Raises InvalidInputError."""
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise _refused(option, name, error) from None


def _refused(option: str, name: str | Path, error: OSError) -> InvalidInputError:
    return InvalidInputError(option, str(name), error.strerror or "cannot be read or written")
