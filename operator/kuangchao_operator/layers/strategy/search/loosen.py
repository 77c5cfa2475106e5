"""Which pin to give up where nothing fits, and the value next to it with which something does. Pure.

A value is named only after it was put in and searched with, so that whoever takes the advice has a plan.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from kuangchao_contracts.base import MOST_COUNT
from kuangchao_contracts.parallel import Objective
from kuangchao_contracts.plan import PlanRequest
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.combination import whole_groups
from kuangchao_operator.layers.strategy.nearest import neighbours, written
from kuangchao_operator.layers.strategy.numbers import divisors
from kuangchao_operator.layers.strategy.rewrite import changed, choices
from kuangchao_operator.layers.strategy.search.best import Closest
from kuangchao_operator.layers.strategy.search.plans import member
from kuangchao_operator.layers.strategy.search.possible import possible
from kuangchao_operator.layers.strategy.search.trial import Trial

PINS: Final = (
    "microBatch",
    "recompute",
    "sharding",
    "data",
    "sequence",
    "context",
    "tensor",
    "pipeline",
    "expert",
    "virtualStages",
    "schedule",
    "stageLayers",
)
"""Pins in the order in which a user would rather give them up."""
MOST_TRIED: Final = 6
"""Values next to a pin that are searched with on either side; what the best plan without the pin has comes last."""


class Way(NamedTuple):
    """One way out: the field to change, what it is now and should be, and words for it."""

    field: str
    value: str | None
    """None: it has none now."""
    nearest: str | None
    """None: what would do is not there, as devices that the pool does not have."""
    words: str


def loosened(tried: Trial) -> Way | None:
    """A pin with another value of which something fits."""
    for name in _pins(tried.request):
        found = tried.again(_put(tried.request, name, None)).best()
        if found is not None:
            return _way(tried, name, written(member(found.setting, name)), lambda wish: fits(tried, wish))
    return None


def kept(tried: Trial) -> Way | None:
    """A pin with another value with which some layout keeps every law, whether it fits or not."""
    for name in _pins(tried.request):
        if possible(_put(tried.request, name, None), tried.known):
            return _way(tried, name, "none", lambda wish: possible(wish, tried.known))
    return None


def beyond_island(tried: Trial, does: Callable[[PlanRequest], bool]) -> Way | None:
    """The least tensor size that only a pin opens, since its groups leave the island of fast links, and that does."""
    space, field = tried.search.space, _field("tensor")
    if "tensor" in space.pins:
        return None
    sizes = (n for n in reversed(divisors(space.world)) if not whole_groups(n, space.island, space.per_pod))
    found = next((n for n in sizes if does(changed(tried.request, field, n))), None)
    words = f"{field} {found}, whose groups leave the island of fast links"
    return None if found is None else Way(field, None, str(found), words)


def share_that_fits(tried: Trial, closest: Closest) -> Way | None:
    """The most samples that a command may take at a time, its share of the batch being whole passes."""
    share, field = closest.setting.micro_batch, _field("microBatch")
    found = next((n for n in divisors(share)[1:] if fits(tried, changed(tried.request, field, n))), None)
    return None if found is None else Way(field, str(share), str(found), f"{field} {found}")


def _pins(request: PlanRequest) -> Iterator[str]:
    """Pins without which the request breaks no law."""
    given = request.parallelism.wire()
    return (name for name in PINS if name in given and laws.lawful(_put(request, name, None)))


def _way(tried: Trial, name: str, best: str, does: Callable[[PlanRequest], bool]) -> Way:
    """The nearest values on either side that do, or the best plan's."""
    field, given = _field(name), tried.request.parallelism.wire()[name]
    numbers = isinstance(given, int) and not isinstance(given, bool)
    found = _neighbours(tried, field, given, does) if numbers else ()
    nearest = " or ".join(map(str, found)) or best
    return Way(field, _written(given), nearest, f"{field} {nearest}")


def _neighbours(tried: Trial, field: str, given: int, does: Callable[[PlanRequest], bool]) -> Iterable[int]:
    """The first number on either side that does, of those that no law forbids."""
    request = tried.request
    for side in neighbours(given, (n for n in choices(request, field) if isinstance(n, int))):
        lawful = (n for n in side if laws.lawful(changed(request, field, n)))
        yield from islice((n for n in islice(lawful, MOST_TRIED) if does(changed(request, field, n))), 1)


def fits(tried: Trial, request: PlanRequest) -> bool:
    """Whether a request breaks no law and something fits."""
    return laws.lawful(request) and tried.again(request).search.feasible()


def resized(tried: Trial, devices: int) -> PlanRequest:
    """The request with so many devices: those of the pool, or were there as many of the same kind."""
    shapes = tried.request.shapes
    if devices > laws.capacity(tried.request):
        nodes = min(MOST_COUNT, -(-devices // tried.shape.per_node) * 2)
        shapes = (tried.shape.replace(nodes=nodes),)
    parallelism = tried.request.parallelism.replace(objective=Objective.TIME)
    return tried.request.replace(devices=devices, shapes=shapes, parallelism=parallelism)


def beyond_pool(request: PlanRequest, count: int) -> str:
    """Words for a number of devices that the pool does not have."""
    most = laws.capacity(request)
    return "" if count <= most else f" (the pool has {most} for pods of {request.per_pod})"


def _put(request: PlanRequest, name: str, value: Any) -> PlanRequest:
    return changed(request, _field(name), value)


def _field(name: str) -> str:
    return f"parallelism.{name}"


def _written(given: Any) -> str:
    return written(tuple(given) if isinstance(given, list) else given)
