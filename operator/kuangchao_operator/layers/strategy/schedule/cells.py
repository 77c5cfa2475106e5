"""A lane cut into equal cells, each with what takes most of it. Pure."""

from collections.abc import Iterable

from kuangchao_operator.layers.strategy.schedule.timeline import Activity, Span


def cells(spans: Iterable[Span], width: int, stop: int) -> list[Activity | None]:
    """`width` cells over 0 .. `stop` microseconds; None where nothing runs for most of a cell."""
    shares: list[dict[Activity | None, int]] = [{} for _ in range(width)]
    for span in spans:
        for cell in range(span.start * width // stop, -(-span.stop * width // stop)):
            # in units of 1 / width microseconds, so that cells have whole bounds
            part = min(span.stop * width, (cell + 1) * stop) - max(span.start * width, cell * stop)
            shares[cell][span.activity] = shares[cell].get(span.activity, 0) + part
    return [_most(share, stop) for share in shares]


def _most(share: dict[Activity | None, int], whole: int) -> Activity | None:
    idle = whole - sum(share.values())
    found = max(share, key=lambda activity: share[activity], default=None)
    return found if found is not None and share[found] >= idle else None


def bounds(span: Span, width: int, stop: int) -> range:
    """The cells that a span fills, to the nearest bound."""
    return range((2 * span.start * width + stop) // (2 * stop), (2 * span.stop * width + stop) // (2 * stop))
