"""A request with another value of one field, and the values that are tried there for the nearest legal one. Pure.

Fields are named by their path in a manifest's spec. It decides nothing: laws do.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from math import lcm
from typing import Any, Final

from pydantic.alias_generators import to_snake

from kuangchao_contracts.base import MOST_COUNT
from kuangchao_contracts.plan import PlanRequest, TransformerModel
from kuangchao_operator.layers.strategy.nearest import Asked
from kuangchao_operator.layers.strategy.numbers import divisors
from kuangchao_operator.layers.strategy.pins import pinned_sizes
from kuangchao_operator.layers.strategy.runnable import NEUTRAL, open_axes
from kuangchao_operator.layers.strategy.sizes import Broken
from kuangchao_operator.layers.strategy.values import around, counts, values

_MEMBERS: Final = {"devices.count": "devices", "devices.perPod": "per_pod"}
"""Where a request has what stands elsewhere in a manifest."""
USUAL_LENGTHS: Final = (4096, 2048, 1024, 512)
"""Lengths of a sequence to name where a job has none and its model says none."""


def asked(
    request: PlanRequest, faults: Callable[[PlanRequest], Iterator[Broken]], possible: Callable[[PlanRequest], bool]
) -> Asked:
    """What values are tried on: the whole request, by these laws, and whether any layout keeps them all."""
    return Asked(
        value=partial(value, request),
        values=partial(choices, request),
        blamed=lambda field, other: (one.field for one in faults(changed(request, field, other))),
        possible=lambda field, other: possible(changed(request, field, other)),
    )


def value(request: PlanRequest, field: str) -> Any:
    """What a request has at a path; None where it has nothing."""
    part: Any = request
    for name in _names(field):
        part = getattr(part, name, None)
    return part


def changed(request: PlanRequest, field: str, other: object) -> PlanRequest:
    """The request with another value at a path; None leaves a pin out."""
    found: PlanRequest = _put(request, _names(field), other)
    return found


def _names(field: str) -> tuple[str, ...]:
    return (_MEMBERS[field],) if field in _MEMBERS else tuple(map(to_snake, field.split(".")))


def _put(whole: Any, names: tuple[str, ...], other: object) -> Any:
    first, *rest = names
    return whole.replace(**{first: _put(getattr(whole, first), tuple(rest), other) if rest else other})


def choices(request: PlanRequest, field: str) -> Iterable[object]:
    """Values that a field may have, those that are no numbers in order of preference."""
    group, _, name = field.partition(".")
    sizes = pinned_sizes(request, open_axes(request))
    if field == "devices.count":
        most = sum(shape.per_node * shape.nodes for shape in request.shapes)
        return counts(sizes, request.per_pod, min(most, MOST_COUNT))
    if field == "devices.perPod":
        return (*divisors(request.devices), *(shape.per_node for shape in request.shapes))
    if field == "training.sequenceLength":
        return _lengths(request)
    if field == "training.globalBatch" or (group == "parallelism" and name not in ("recompute", "sharding")):
        return values(sizes, name)
    return (NEUTRAL[name],) if group == "parallelism" else _of_model(request.model, name)


def _of_model(model: object, name: str) -> Iterable[int]:
    """Of the members that others must come out even with; of the rest a law knows its own nearest value."""
    if not isinstance(model, TransformerModel):
        return ()
    found: dict[str, Callable[[], Iterable[int]]] = {
        "heads": lambda: divisors(model.hidden),
        "kvHeads": lambda: divisors(model.heads),
        "hidden": lambda: around(model.hidden, model.heads, MOST_COUNT),
    }
    return found[name]() if name in found else ()


def _lengths(request: PlanRequest) -> Iterator[int]:
    """Lengths that pins divide, not above what the model was made for; the usual ones where none is given."""
    model, wish, given = request.model, request.parallelism, request.training.sequence_length
    bounds = (model.max_sequence, model.learned_positions) if isinstance(model, TransformerModel) else ()
    known = [n for n in bounds if n]
    context, tensor = wish.context or 1, (wish.tensor or 1) if wish.sequence else 1
    unit = lcm(2 * context if context > 1 else 1, tensor * context)
    if given is not None:
        most = min(given, *known)
        return chain(*(around(most, step, MOST_COUNT) for step in (1, unit)))
    return iter((*known, *USUAL_LENGTHS, unit))
