"""The nearest legal value of what a law refuses: values are put in, and every law is asked. Pure; no law itself.

The arithmetic of one law does not know what the others allow: 7 divides 28 heads, and not the 16 devices. So a value is
named only if the laws take it where it is to stand.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from kuangchao_operator.layers.strategy.shown import as_written
from kuangchao_operator.layers.strategy.sizes import Broken, Contradiction

MOST_NAMED: Final = 200
"""Characters of a value that is named: one that is cut off is of no use to anybody."""
MOST_LISTED: Final = 12
"""Values that a message lists."""
MOST_ASKED: Final = 8
"""Legal values on either side of which it is asked whether some layout keeps the laws: a refusal comes at once."""
MOST_WAYS: Final = 2
"""Fields that a refusal names as what could be changed."""
Values = Callable[[str], Iterable[object]]


class _Sure(Enum):
    """How much is known of a value that is named, the best first."""

    POSSIBLE = "some layout keeps every law"
    LAWFUL = "it breaks no law by itself"
    THERE = "no law on its field refuses it"


class Asked(NamedTuple):
    """What values are tried on: a request or a layout, of which one field at a time is changed."""

    value: Callable[[str], object]
    """The value of a field as it is; None where it has none."""
    values: Values
    """Values that a field may have as far as it alone is concerned; those that are no numbers by preference."""
    blamed: Callable[[str, object], Iterator[str]]
    """Fields that the laws blame once a field has another value; none where all of it is legal."""
    possible: Callable[[str, object], bool] = lambda _field, _other: True
    """Whether some layout is legal once a field has another value that no law blames: dearer to ask."""


def mended(found: Broken, asked: Asked) -> Contradiction:
    """A broken law with the value next to the one given, on either side, with which all laws are kept.

    Of the fields that could be changed the first one is named with a value for which some layout keeps them too. Where
    there is none, since something else is wrong as well, it is a value that breaks no law by itself, or else one that
    no law on that field refuses.
    """
    has = {found.field: found.value} | {field: value for field in found.instead if (value := asked.value(field))}
    ways = next(filter(None, (_ways(asked, has, sure) for sure in _Sure)), [])
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


def neighbours(value: int, numbers: Iterable[int]) -> tuple[list[int], list[int]]:
    """Numbers below and above a value, each from the value outwards."""
    found = sorted(set(numbers))
    return [n for n in reversed(found) if n < value], [n for n in found if n > value]


def written(value: object) -> str:
    """A value as a user would write it; "none" leaves it out."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]" if value else "none"
    return "none" if value is None else as_written(value)


def _ways(asked: Asked, has: Mapping[str, object], sure: _Sure) -> list[tuple[str, tuple[object, ...]]]:
    """The fields that have a value that would do, with the nearest ones; one, where it would not be enough."""
    tried = ((field, _near(asked, field, value, sure)) for field, value in has.items())
    most = MOST_WAYS if sure is _Sure.POSSIBLE else 1
    return list(islice(((field, near) for field, near in tried if near), most))


def _near(asked: Asked, field: str, value: object, sure: _Sure) -> tuple[object, ...]:
    found = tuple(asked.values(field))
    if isinstance(value, int) and not isinstance(value, bool):
        sides: tuple[Iterable[object], ...] = neighbours(value, (n for n in found if isinstance(n, int)))
    else:
        sides = ((one for one in found if one != value and len(written(one)) <= MOST_NAMED),)
    return tuple(one for side in sides for one in islice(_legal(asked, field, side, sure), 1))


def _legal(asked: Asked, field: str, side: Iterable[object], sure: _Sure) -> Iterator[object]:
    """Of these values those that would do; only for the first ones of them is it asked whether a layout does."""
    whole = sure is not _Sure.THERE
    legal = (one for one in side if not any(whole or blamed == field for blamed in asked.blamed(field, one)))
    if sure is not _Sure.POSSIBLE:
        return legal
    return (one for one in islice(legal, MOST_ASKED) if asked.possible(field, one))


def _plain(value: object) -> int | str:
    return value if isinstance(value, int) and not isinstance(value, bool) else written(value)


def _listed(found: Broken, asked: Asked, near: Sequence[object]) -> str:
    """All that would do, where a law is of divisors and there are more of them than are named."""
    if not found.listed:
        return ""
    numbers = sorted({n for n in asked.values(found.field) if isinstance(n, int)})
    legal = list(islice(_legal(asked, found.field, numbers, _Sure.LAWFUL), MOST_LISTED))
    legal = [n for n in legal if asked.possible(found.field, n)] or legal
    return f": it may be {', '.join(map(str, legal))}" if len(legal) > len(near) else ""


def _either(values: Iterable[object]) -> str:
    return " or ".join(map(written, values))
