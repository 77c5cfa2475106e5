"""Resource strings `<ns>/<kind>/<name>[/<sub>...]`, compared segment by segment, never by prefix or pattern."""

import re
from functools import lru_cache

from kuangchao_contracts.errors import InvalidResourceError, WildcardForbiddenError

CLUSTER = "_cluster"
"""Namespace segment of resources that are in no namespace."""
MAX_BYTES = 512
_SEGMENT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


@lru_cache(maxsize=4_096)
def parse(resource: str, *, allow_wildcard: bool = False) -> tuple[str, ...]:
    """Segments of a resource. A last segment `*` is legal only in grants, and never as the namespace or the kind.

    Raises InvalidResourceError or WildcardForbiddenError; refusals are not cached.
    """
    if len(resource) > MAX_BYTES:
        raise InvalidResourceError(f"resource exceeds {MAX_BYTES} characters")
    segments = tuple(resource.split("/"))
    for place, segment in enumerate(segments):
        _check(segment, place, wildcard=allow_wildcard and place >= 2 and place == len(segments) - 1)
    if not 3 <= len(segments) <= 8:
        raise InvalidResourceError("resource must be <ns>/<kind>/<name>[/<sub>...]")
    return segments


def _check(segment: str, place: int, *, wildcard: bool) -> None:
    if "*" in segment:
        if not (wildcard and segment == "*"):
            raise WildcardForbiddenError("* is allowed only as the whole last segment of a grant")
        return
    if place == 0 and segment == CLUSTER:
        return
    if _SEGMENT.fullmatch(segment) is None or ".." in segment:
        raise InvalidResourceError(f"segment {place} of resource is not a lower-case ASCII name")


def covers(granted: str, requested: str) -> bool:
    """Whether a grant's resource covers a requested one: equal segments, `*` standing for one whole segment."""
    have, want = parse(granted, allow_wildcard=True), parse(requested)
    return len(have) == len(want) and all(h in ("*", w) for h, w in zip(have, want, strict=True))


def narrower(granted: str, wanted: str) -> bool:
    """Whether one grant's resource covers another grant's, so that the second may be delegated from the first."""
    have, want = parse(granted, allow_wildcard=True), parse(wanted, allow_wildcard=True)
    return len(have) == len(want) and all(h in ("*", w) for h, w in zip(have, want, strict=True))
