"""What an operation of torch is given: its arguments beside what its schema says of them, for modes and subclasses."""

from collections.abc import Mapping, Sequence
from typing import Any


def arguments(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Each argument that was given, as its schema has it, with its value."""
    known = func._schema.arguments  # noqa: SLF001 - its only description
    return [*zip(known, args, strict=False), *((a, named[a.name]) for a in known if a.name in named)]


def writes(argument: Any) -> bool:
    """Whether an operation changes what it gets there."""
    return argument.alias_info is not None and bool(argument.alias_info.is_write)
