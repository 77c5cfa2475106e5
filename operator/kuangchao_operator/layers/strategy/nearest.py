"""The nearest legal value of what a law refuses: values are put in, and every law is asked. Pure; no law itself.

The arithmetic of one law does not know what the others allow: 7 divides 28 heads, and not the 16 devices. So a value is
named only if the laws take it where it is to stand.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from kuangchao_operator.layers.strategy.shown import as_written
from kuangchao_operator.layers.strategy.sizes import Broken, Contradiction

MOST_NAMED: Final = 200
"""Characters of a value that is named: one that is cut off is of no use to anybody."""
MOST_LISTED: Final = 12
"""Values that a message lists."""
MOST_WAYS: Final = 2
"""Fields that a refusal names as what could be changed."""
Values = Callable[[str], Iterable[object]]


class Asked(NamedTuple):
    """What values are tried on: a request or a layout, of which one field at a time is changed."""

    value: Callable[[str], object]
    """The value of a field as it is; None where it has none."""
    values: Values
    """Values that a field may have as far as it alone is concerned; those that are no numbers by preference."""
    blamed: Callable[[str, object], Iterator[str]]
    """Fields that the laws blame once a field has another value; none where all of it is legal."""


def mended(found: Broken, asked: Asked) -> Contradiction:
    """A broken law with the value next to the one given, on either side, with which all laws are kept.

    Of the fields that could be changed the first one with such a value is named. Where there is none, since something
    else is wrong too, it is the value that no law on that field refuses.
    """
    has = {found.field: found.value} | {field: value for field in found.instead if (value := asked.value(field))}
    ways = _ways(asked, has, entirely=True) or _ways(asked, has, entirely=False)[:1]
    field, near = ways[0] if ways else (found.field, ())
    others = "".join(f"; or {name}: {_either(values)}" for name, values in ways[1:])
    named = _either(near) or found.near
    was = "" if field == found.field else f" instead of {written(has[field])}"
    words = f"{_listed(found, asked, near)}; nearest legal {field}: {named}{was}{others}" if named else ""
    hint = f"{', or' if named else '; it takes'} {found.hint}" if found.hint else ""
    return Contradiction(
        field,
        _plain(has[field]),
        named,
        f"{found.why}{words}{hint}",
    )


def neighbours(value: int, numbers: Iterable[int], legal: Callable[[int], bool]) -> tuple[int, ...]:
    """Of these numbers the legal ones next to a value, lower one first. Asks from the value outwards."""
    found = sorted(set(numbers))
    below = next((n for n in reversed(found) if n < value and legal(n)), None)
    above = next((n for n in found if n > value and legal(n)), None)
    return tuple(n for n in (below, above) if n is not None)


def written(value: object) -> str:
    """A value as a user would write it; "none" leaves it out."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]" if value else "none"
    return "none" if value is None else as_written(value)


def _ways(asked: Asked, has: Mapping[str, object], *, entirely: bool) -> list[tuple[str, tuple[object, ...]]]:
    """The fields that have a value that would do, with the nearest ones."""
    tried = ((field, _near(asked, field, value, entirely=entirely)) for field, value in has.items())
    return list(islice(((field, near) for field, near in tried if near), MOST_WAYS))


def _near(asked: Asked, field: str, value: object, *, entirely: bool) -> tuple[object, ...]:
    def legal(other: object) -> bool:
        return not any(entirely or one == field for one in asked.blamed(field, other))

    found = tuple(asked.values(field))
    if isinstance(value, int) and not isinstance(value, bool):
        return neighbours(value, (n for n in found if isinstance(n, int)), legal)
    return next(((one,) for one in found if one != value and len(written(one)) <= MOST_NAMED and legal(one)), ())


def _plain(value: object) -> int | str:
    return value if isinstance(value, int) and not isinstance(value, bool) else written(value)


def _listed(found: Broken, asked: Asked, near: Sequence[object]) -> str:
    """All that would do, where a law is of divisors and there are more of them than are named."""
    if not found.listed:
        return ""
    legal = sorted(
        n for n in asked.values(found.field) if isinstance(n, int) and next(asked.blamed(found.field, n), None) is None
    )
    return f": it may be {', '.join(map(str, legal[:MOST_LISTED]))}" if len(legal) > len(near) else ""


def _either(values: Iterable[object]) -> str:
    return " or ".join(map(written, values))
