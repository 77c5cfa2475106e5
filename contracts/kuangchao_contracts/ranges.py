"""Index sets as short text: {3, 7, 8, 9} <-> "3,7-9". Status never lists every rank."""

from collections.abc import Iterable

from kuangchao_contracts.errors import InvalidInputError


def to_ranges(indices: Iterable[int]) -> str:
    """Compressed ascending form of a set of non-negative integers; "" for the empty set."""
    parts: list[list[int]] = []
    for index in sorted(set(indices)):
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def from_ranges(text: str) -> list[int]:
    """Inverse of `to_ranges`. Raises InvalidInputError on anything else."""
    indices: list[int] = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        if not low.isdecimal() or (high and not high.isdecimal()) or (high and int(high) < int(low)):
            raise InvalidInputError("ranges", text, "must look like 3,7-9")
        indices.extend(range(int(low), int(high or low) + 1))
    return indices
