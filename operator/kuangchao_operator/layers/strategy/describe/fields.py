"""Fields of a parsed configuration, with the error that names the field when one is missing or no number. Pure."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from kuangchao_contracts.base import MOST_COUNT
from kuangchao_contracts.errors import InvalidInputError

_SHOWN: Final = 120


class Fields:
    """A mapping as somebody else wrote it. A field that is null counts as absent."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def whole(self, *names: str, most: int = MOST_COUNT) -> int:
        """The first of these fields that is there, a whole number above 0. Raises InvalidInputError."""
        found = self.maybe(*names, most=most)
        if not found:
            name = next((name for name in names if self._values.get(name) == 0), names[0])
            why = "is missing from the configuration" if found is None else "must be above 0"
            raise InvalidInputError(name, found, why, None if found is None else 1)
        return found

    def maybe(self, *names: str, most: int = MOST_COUNT) -> int | None:
        """The first of these fields that is there, from 0 on, None when none is. Raises InvalidInputError."""
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidInputError(name, _shown(value), "is no whole number", _whole(value))
            if value > most:
                raise InvalidInputError(name, value, "is more than a descriptor can say", most)
            return value
        return None

    def says(self, name: str) -> bool:
        """Whether the field stands there, even if it is null."""
        return name in self._values

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean. Raises InvalidInputError."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidInputError(name, _shown(value), "is neither true nor false", str(default).lower())
        return value

    def real(self, name: str, default: float) -> float:
        """A number. Raises InvalidInputError."""
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInputError(name, _shown(value), "is no number")
        return float(value)

    def text(self, name: str) -> str:
        """A string, "" when it is absent."""
        value = self._values.get(name)
        return value if isinstance(value, str) else ""

    def absent(self, name: str) -> bool:
        """Whether the field is not there, null, false or empty."""
        return not self._values.get(name)


def _shown(value: object) -> str:
    """A value that may be anything, as it stands in a message."""
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _whole(value: object) -> int | None:
    """The number that was probably meant."""
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
    except ValueError:
        return None
    return round(number) if isfinite(number) and number >= 0 else None
