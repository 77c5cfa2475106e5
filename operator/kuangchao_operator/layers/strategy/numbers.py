"""Whole numbers as the laws need them: divisors, multiples, and how they are told to people. Pure."""

from collections.abc import Iterable
from functools import lru_cache
from math import isqrt


@lru_cache(maxsize=4096)
def divisors(value: int) -> tuple[int, ...]:
    """All divisors of a positive number, largest first."""
    small = [n for n in range(1, isqrt(value) + 1) if value % n == 0]
    return tuple(sorted({*small, *(value // n for n in small)}, reverse=True))


def nearest_divisors(value: int, wanted: int) -> tuple[int, ...]:
    """Divisors of `value` next to `wanted`, lower one first."""
    below = max(n for n in divisors(value) if n <= wanted)
    above = [n for n in divisors(value) if n > wanted]
    return (below, *above[-1:])


def nearest_multiples(value: int, base: int) -> tuple[int, ...]:
    """Multiples of `base` next to `value`, lower one first; only positive ones."""
    below = value // base * base
    return tuple(multiple for multiple in (below, below + base) if multiple > 0)


def either(values: Iterable[int]) -> str:
    """Numbers for people: "28 or 32"."""
    return " or ".join(str(value) for value in values)
