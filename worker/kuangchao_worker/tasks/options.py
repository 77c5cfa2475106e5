"""Reads the texts of spec.taskArgs as numbers, with an error that names the field."""

from collections.abc import Mapping

from kuangchao_contracts.errors import InvalidInputError


class Options:
    """The arguments of a task. `done` refuses names that the task has not asked for."""

    def __init__(self, args: Mapping[str, str]) -> None:
        self._args, self._known = args, set[str]()

    def integer(self, name: str, default: int, minimum: int = 1) -> int:
        """A whole number of at least `minimum`."""
        return int(self._number(name, default, minimum, int))

    def real(self, name: str, default: float, minimum: float = 0.0) -> float:
        """A number of at least `minimum`."""
        return self._number(name, default, minimum, float)

    def _number(self, name: str, default: float, minimum: float, kind: type[int] | type[float]) -> float:
        self._known.add(name)
        text = self._args.get(name)
        if text is None:
            return default
        try:
            value = kind(text)
        except ValueError:
            raise InvalidInputError(f"taskArgs.{name}", text, f"is not {kind.__name__}", default) from None
        if not value >= minimum:
            raise InvalidInputError(f"taskArgs.{name}", text, "is too small", minimum)
        return value

    def done(self) -> None:
        """Raise InvalidInputError for the first unknown name."""
        known = ", ".join(sorted(self._known)) or "none"
        for name in sorted(set(self._args) - self._known):
            raise InvalidInputError(f"taskArgs.{name}", self._args[name], f"is unknown; known: {known}")
