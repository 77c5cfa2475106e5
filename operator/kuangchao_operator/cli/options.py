"""Options that several commands share, and how their texts are read."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from kuangchao_contracts.errors import InvalidInputError

Job = Annotated[str, typer.Argument(help="Name of a TrainingJob.", show_default=False)]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace; default: the kubeconfig's.")]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]
ReleaseNamespace = Annotated[str, typer.Option("--release-namespace", help="Where the operator is installed.")]
RELEASE_NAMESPACE = "kuangchao-system"

_DURATION = re.compile(r"(?:(\d{1,5})d)?(?:(\d{1,6})h)?(?:(\d{1,7})m)?(?:(\d{1,9})s)?", re.ASCII)


def point_in_time(option: str, text: str | None, now: datetime) -> datetime | None:
    """A time given as RFC 3339 or as a duration before now (30s, 15m, 1h, 7d). Raises InvalidInputError."""
    if text is None:
        return None
    match = _DURATION.fullmatch(text)
    if match is not None and text:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return now - timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    try:
        then = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(
            option, text, "is neither a duration nor RFC 3339", "1h or 2026-01-31T12:00:00Z"
        ) from None
    return then if then.tzinfo is not None else then.replace(tzinfo=UTC)
