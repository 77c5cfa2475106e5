"""What a trainer logs, as `report` takes it: a trainer's odd name or text must never end a training. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final

from kuangchao_worker.reports import RESERVED

MAX_NAME: Final = 48
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_./-]")


def figures(logged: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among what was logged (texts and tensors of one element too), by names that can be reported."""
    found = {}
    for name, value in logged.items():
        legal = _ILLEGAL.sub("_", str(name)).lstrip("0123456789_./-")[:MAX_NAME]
        number = _number(value)
        if legal and legal not in RESERVED and number is not None:
            found[legal] = number
    return found


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        # torch raises RuntimeError for a tensor of several elements
        return None
