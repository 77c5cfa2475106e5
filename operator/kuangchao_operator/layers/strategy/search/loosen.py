"""Which pin to give up where nothing fits, and the value next to it with which something does. Pure.

A value is named only after it was put in and searched with, so that whoever takes the advice has a plan.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from kuangchao_contracts.plan import PlanRequest
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.nearest import written
from kuangchao_operator.layers.strategy.numbers import divisors
from kuangchao_operator.layers.strategy.rewrite import asked, changed
from kuangchao_operator.layers.strategy.search.best import Closest
from kuangchao_operator.layers.strategy.search.plans import member
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
    value: str
    nearest: str
    words: str


def loosened(tried: Trial) -> Way | None:
    """A pin with another value of which something fits."""
    for name in _pins(tried.request):
        found = _best(tried.again(_put(tried.request, name, None)))
        if found is not None:
            return _way(tried, name, written(member(found, name)))
    return None


def share_that_fits(tried: Trial, closest: Closest) -> Way | None:
    """The most samples that a command may take at a time, its share of the batch being whole passes."""
    share, field = closest.setting.micro_batch, _field("microBatch")
    found = next(iter(_first(tried, field, divisors(share)[1:])), None)
    return None if found is None else Way(field, str(share), str(found), f"{field} {found}")


def _pins(request: PlanRequest) -> Iterator[str]:
    """Pins without which the request breaks no law."""
    given = request.parallelism.wire()
    return (name for name in PINS if name in given and laws.lawful(_put(request, name, None)))


def _way(tried: Trial, name: str, best: str) -> Way:
    """The nearest values on either side with which something fits, or the best plan's."""
    field, given = _field(name), tried.request.parallelism.wire()[name]
    numbers = isinstance(given, int) and not isinstance(given, bool)
    found = _neighbours(tried, field, given) if numbers else ()
    nearest = " or ".join(map(str, found)) or best
    return Way(field, _written(given), nearest, f"{field} {nearest}")


def _neighbours(tried: Trial, field: str, given: int) -> tuple[int, ...]:
    request = tried.request
    numbers = sorted({n for n in asked(request, laws.faults).values(field) if isinstance(n, int)})
    sides = ([n for n in reversed(numbers) if n < given], [n for n in numbers if n > given])
    lawful = ((n for n in side if laws.lawful(changed(request, field, n))) for side in sides)
    return tuple(n for side in lawful for n in _first(tried, field, islice(side, MOST_TRIED)))


def _first(tried: Trial, field: str, numbers: Iterable[int]) -> Iterable[int]:
    """The first of these numbers with which something fits, if there is one."""
    return islice((n for n in numbers if _feasible(tried, changed(tried.request, field, n))), 1)


def _feasible(tried: Trial, request: PlanRequest) -> bool:
    return laws.lawful(request) and tried.again(request).search.feasible()


def _best(tried: Trial) -> Setting | None:
    found = next(tried.search.ranked(), None)
    return None if found is None else found.setting


def _put(request: PlanRequest, name: str, value: Any) -> PlanRequest:
    return changed(request, _field(name), value)


def _field(name: str) -> str:
    return f"parallelism.{name}"


def _written(given: Any) -> str:
    return written(tuple(given) if isinstance(given, list) else given)
