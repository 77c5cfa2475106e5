"""Resource strings `<ns>/<kind>/<name>[/<sub>...]`, compared segment by segment, never by prefix or pattern."""

import re

from kuangchao_contracts.errors import InvalidResourceError, WildcardForbiddenError

CLUSTER = "_cluster"
"""Namespace segment of resources that are in no namespace."""
_SEGMENT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


def parse(resource: str, *, allow_wildcard: bool = False) -> tuple[str, ...]:
    """Segments of a resource. A last segment `*` is legal only in grants, and never as the namespace.

    Raises InvalidResourceError or WildcardForbiddenError.
    """
    segments = tuple(resource.split("/"))
    if not 3 <= len(segments) <= 8 or len(resource) > 512:
        raise InvalidResourceError("resource must be <ns>/<kind>/<name>[/<sub>...]")
    for place, segment in enumerate(segments):
        if "*" in segment:
            if not (allow_wildcard and segment == "*" and place == len(segments) - 1):
                raise WildcardForbiddenError("* is allowed only as the whole last segment of a grant")
        elif not (place == 0 and segment == CLUSTER) and (_SEGMENT.fullmatch(segment) is None or ".." in segment):
            raise InvalidResourceError(f"segment {place} of resource is not lower-case ASCII")
    return segments


def covers(granted: str, requested: str) -> bool:
    """Whether a grant's resource covers a requested one: equal segments, `*` standing for one whole segment."""
    have, want = parse(granted, allow_wildcard=True), parse(requested)
    return len(have) == len(want) and all(h in ("*", w) for h, w in zip(have, want, strict=True))
