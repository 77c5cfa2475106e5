"""Fields of a parsed configuration, with the error that names the field when one is missing or no number. Pure."""

from collections.abc import Mapping
from typing import Any

from kuangchao_contracts.errors import InvalidInputError


class Fields:
    """A mapping as somebody else wrote it. A field that is null counts as absent."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def whole(self, *names: str) -> int:
        """The first of these fields that is there, a whole number. Raises InvalidInputError."""
        found = self.maybe(*names)
        if found is None:
            raise InvalidInputError(names[0], None, "is missing from the configuration")
        return found

    def maybe(self, *names: str) -> int | None:
        """As `whole`, None when no field is there."""
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidInputError(name, str(value), "is no whole number")
            return value
        return None

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean. Raises InvalidInputError."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidInputError(name, str(value), "is neither true nor false", str(default).lower())
        return value

    def real(self, name: str, default: float) -> float:
        """A number. Raises InvalidInputError."""
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInputError(name, str(value), "is no number")
        return float(value)

    def text(self, name: str) -> str:
        """A string, "" when it is absent."""
        value = self._values.get(name)
        return value if isinstance(value, str) else ""

    def absent(self, name: str) -> bool:
        """Whether the field is not there, null, false or empty."""
        return not self._values.get(name)
