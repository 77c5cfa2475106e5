"""How every command answers: results on stdout as text or JSON, errors on stderr, one meaning for each exit code."""

import functools
import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer

from kuangchao_contracts import errors as e
from kuangchao_contracts.text import printable

P = ParamSpec("P")
R = TypeVar("R")

DONE, FAILED, BAD_INPUT, REFUSED = 0, 1, 2, 3
INTERRUPTED = 130
EXTRAS = {"kubernetes": "cli", "torch": "worker"}
"""Packages that only some commands need, and the extra that brings them."""


class Format(StrEnum):
    """`-o`: text for people, json for programs."""

    TEXT = "text"
    JSON = "json"


Output = Annotated[Format, typer.Option("--output", "-o", help="text, or json with a stable schema (docs/cli.md).")]


def exit_code(error: e.KuangchaoError) -> int:
    """Exit code of an error."""
    if isinstance(error, e.InvalidInputError):
        return BAD_INPUT
    return REFUSED if isinstance(error, e.PlanInfeasibleError | e.CapabilityError) else FAILED


def reporting(command: Callable[P, R]) -> Callable[P, R]:
    """Turn the errors of a command into a message on stderr and the exit code that fits."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except e.KuangchaoError as error:
            fail(error, kwargs.get("output") is Format.JSON)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRAS:
                raise
            missing = e.UnavailableError(f"needs {package}: pip install 'kuangchao[{EXTRAS[package]}]'")
            fail(missing, kwargs.get("output") is Format.JSON)
        except BrokenPipeError:
            raise
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            fail(e.UnavailableError(f"{where}{error.strerror or error}"), kwargs.get("output") is Format.JSON)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    return run


def fail(error: e.KuangchaoError, as_json: bool) -> NoReturn:
    """Print an error and end the command."""
    if as_json:
        print(json.dumps({"error": error_json(error)}, default=str), file=sys.stderr)
    else:
        print(f"error: {error}", file=sys.stderr)
    raise typer.Exit(exit_code(error))


def error_json(error: e.KuangchaoError) -> dict[str, Any]:
    """The JSON form of an error: code and message, and for bad input field, value and nearest."""
    body: dict[str, Any] = {"code": error.code, "message": str(error)}
    if isinstance(error, e.InvalidInputError):
        body |= {"field": error.field, "value": error.value, "nearest": error.nearest}
    return body


def emit_json(value: Any) -> None:
    """A result for programs: one JSON value on stdout."""
    print(json.dumps(value, indent=2, default=str, ensure_ascii=not writes_unicode()))


def writes_unicode() -> bool:
    """Whether stdout takes every character; else JSON and YAML write those beyond ASCII as escapes."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as kubectl aligns them: three spaces apart, upper-case header, nothing cut."""
    lines = [[name.upper() for name in header], *([printable(cell) or "<none>" for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join("   ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def age(then: datetime | None, now: datetime) -> str:
    """Time passed, as kubectl writes it: 45s, 12m, 3h, 9d."""
    if then is None:
        return ""
    seconds = max(0, int((now - then).total_seconds()))
    for size, unit, limit in ((1, "s", 120), (60, "m", 7_200), (3_600, "h", 172_800)):
        if seconds < limit:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86_400}d"
