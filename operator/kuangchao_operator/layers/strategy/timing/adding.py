"""Adding floats the same way on every Python: the built-in sum compensates errors from 3.12 on. Pure."""

from collections.abc import Iterable


def added(values: Iterable[float]) -> float:
    """The sum from left to right, every step rounded."""
    total = 0.0
    for value in values:
        total += value
    return total
