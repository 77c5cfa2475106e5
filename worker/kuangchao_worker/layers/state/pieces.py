"""Pieces of tensors: where a part of a whole lies, and what two parts have in common. Pure."""

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

Sizes = tuple[int, ...]


class Piece(NamedTuple):
    """A box inside a tensor: offset and size along each dimension, in elements. A scalar has no dimension."""

    offset: Sizes
    size: Sizes

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return prod(self.size)


def whole(shape: Iterable[int]) -> Piece:
    """All of a tensor of this shape."""
    sizes = tuple(shape)
    return Piece((0,) * len(sizes), sizes)


def overlap(one: Piece, other: Piece) -> Piece | None:
    """What both hold; None when that is nothing."""
    starts = tuple(map(max, one.offset, other.offset))
    ends = (min(a + m, b + n) for a, m, b, n in zip(one.offset, one.size, other.offset, other.size, strict=True))
    sizes = tuple(end - start for start, end in zip(starts, ends, strict=True))
    return Piece(starts, sizes) if all(size > 0 for size in sizes) else None


def within(outer: Piece, inner: Piece) -> tuple[slice, ...]:
    """Where `inner` lies in a tensor that holds `outer`."""
    starts = [i - o for i, o in zip(inner.offset, outer.offset, strict=True)]
    return tuple(slice(start, start + size) for start, size in zip(starts, inner.size, strict=True))
