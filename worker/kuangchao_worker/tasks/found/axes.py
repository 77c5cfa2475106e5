"""Where in a tensor the features lie that tensor parallelism would divide, and where they lie after an operation. Pure.

An operation that is not known here, or needs the features together, raises `LostError`: a model is then not split
there. Being wrong the other way would train another model without a word.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch


class LostError(Exception):
    """The features cannot be followed through an operation; the message says why."""


class Axis(NamedTuple):
    """A dimension is `outer` times `parts` times the rest, row by row; the `parts` in the middle are divided."""

    dim: int
    outer: int
    parts: int


class Operand(NamedTuple):
    """A tensor that an operation takes, with its axis if it has one."""

    shape: tuple[int, ...]
    axis: Axis | None


Rule = Callable[[Sequence[Operand], Sequence[Any], tuple[int, ...]], Axis]
"""From the tensors, all arguments and the shape of the (first) result to the axis in each result."""


def viewed(axis: Axis, shape: Sequence[int], into: Sequence[int]) -> Axis:
    """The axis in the same elements under another shape. Of a dimension taken apart the first part is divided."""
    before = math.prod(shape[: axis.dim]) * axis.outer
    place = 0
    for dim, size in enumerate(into):
        if size != 1 and math.prod(into[:dim]) <= before:
            place = dim
    outer, rest = divmod(before, math.prod(into[:place]))
    left, odd = divmod(into[place], max(1, outer))
    parts = math.gcd(left, axis.parts)
    if rest or odd or parts not in (left, axis.parts) or parts == 1:
        raise LostError(f"shape {tuple(shape)} becomes {tuple(into)} across them")
    return Axis(place, outer, parts)


def together(operands: Sequence[Operand], into: Sequence[int]) -> Axis:
    """The axis where tensors are taken element by element, smaller ones again and again, as torch broadcasts."""
    found: Axis | None = None
    for shape, axis in operands:
        if axis is None:
            continue
        here = axis._replace(dim=axis.dim + len(into) - len(shape))
        if found is not None and (found.dim, found.outer) != (here.dim, here.outer):
            raise LostError("two tensors meet that are divided in different places")
        found = here if found is None else found._replace(parts=math.gcd(found.parts, here.parts))
    if found is None or found.parts == 1:
        raise LostError("two tensors meet that are divided into different numbers")
    for shape, axis in operands:
        dim = found.dim - len(into) + len(shape)
        if axis is None and dim >= 0 and shape[dim] != 1:
            raise LostError("they meet a tensor that every rank has whole")
    return found


def _elements(operands: Sequence[Operand], arguments: Sequence[Any], into: tuple[int, ...]) -> Axis:
    del arguments
    return together(operands, into)


def _view(operands: Sequence[Operand], arguments: Sequence[Any], into: tuple[int, ...]) -> Axis:
    del arguments
    return viewed(_only(operands), operands[0].shape, into)


def _expand(operands: Sequence[Operand], arguments: Sequence[Any], into: tuple[int, ...]) -> Axis:
    del arguments
    axis = _only(operands)
    return axis._replace(dim=axis.dim + len(into) - len(operands[0].shape))


def _permute(operands: Sequence[Operand], arguments: Sequence[Any], into: tuple[int, ...]) -> Axis:
    axis = _only(operands)
    order = [dim % len(into) for dim in arguments[1]]
    return axis._replace(dim=order.index(axis.dim))


def _transpose(operands: Sequence[Operand], arguments: Sequence[Any], into: tuple[int, ...]) -> Axis:
    axis = _only(operands)
    one, two = (dim % len(into) for dim in (arguments[1:] or (0, 1)))
    return axis._replace(dim={one: two, two: one}.get(axis.dim, axis.dim))


def _along(operands: Sequence[Operand], arguments: Sequence[Any], into: tuple[int, ...]) -> Axis:
    """Operations along a dimension that stays: each place beside it is taken alone."""
    del into
    axis = _only(operands)
    _beside(axis, operands[0].shape, _dims(arguments, 1))
    return axis


def _reduce(operands: Sequence[Operand], arguments: Sequence[Any], into: tuple[int, ...]) -> Axis:
    """Operations along dimensions that go, or stay with one element."""
    axis, shape = _only(operands), operands[0].shape
    dims = {dim % len(shape) for dim in _dims(arguments, 1)} or set(range(len(shape)))
    _beside(axis, shape, dims)
    gone = sum(dim < axis.dim for dim in dims) if len(into) < len(shape) else 0
    return axis._replace(dim=axis.dim - gone)


def _matrices(operands: Sequence[Operand], arguments: Sequence[Any], into: tuple[int, ...]) -> Axis:
    """Batches of matrices, divided among the batches alone."""
    del arguments
    if any(axis is None or axis.dim != 0 for _, axis in operands):
        raise LostError("they meet in a product of matrices that does not take them one by one")
    return together([one._replace(shape=(one.shape[0],)) for one in operands], into[:1])


def _joined(operands: Sequence[Operand], arguments: Sequence[Any], into: tuple[int, ...]) -> Axis:
    if len({len(shape) for shape, _ in operands}) != 1:
        raise LostError("tensors of several shapes are joined")
    dim = (arguments[1] if len(arguments) > 1 else 0) % len(into)
    cut = [Operand((*shape[:dim], 1, *shape[dim + 1 :]), axis) for shape, axis in operands]
    axis = together(cut, into)
    if any(one is None for _, one in operands):
        raise LostError("they are joined with a tensor that every rank has whole")
    _beside(axis, into, (dim,))
    return axis


def _only(operands: Sequence[Operand]) -> Axis:
    """The axis of the first tensor, which must be the only one that has any."""
    axis = operands[0].axis
    if axis is None or any(one.axis is not None for one in operands[1:]):
        raise LostError("they say how another tensor is taken")
    return axis


def _dims(arguments: Sequence[Any], place: int) -> Sequence[int]:
    value = arguments[place] if len(arguments) > place else ()
    return (value,) if isinstance(value, int) else tuple(value or ())


def _beside(axis: Axis, shape: Sequence[int], dims: Sequence[int] | set[int]) -> None:
    if axis.dim in {dim % len(shape) for dim in dims}:
        raise LostError("it takes all of them together")


def _sliced(operands: Sequence[Operand], arguments: Sequence[Any], into: tuple[int, ...]) -> Axis:
    if operands[0].shape == into:
        return _only(operands)
    return _along(operands, [arguments[0], arguments[1] if len(arguments) > 1 else 0], into)


def _selected(operands: Sequence[Operand], arguments: Sequence[Any], into: tuple[int, ...]) -> Axis:
    return _reduce(operands, [arguments[0], arguments[1] if len(arguments) > 1 else 0], into)


def _split(operands: Sequence[Operand], arguments: Sequence[Any], into: tuple[int, ...]) -> Axis:
    return _along(operands, [arguments[0], arguments[2] if len(arguments) > 2 else 0], into)


RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(("view", "_unsafe_view", "unsqueeze", "squeeze", "alias", "detach", "_reshape_alias"), _view),
    **dict.fromkeys(("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "bernoulli_"), _elements),
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax", "cumsum", "flip"), _along),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "all", "any", "logsumexp"), _reduce),
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    **dict.fromkeys(("select", "unbind"), _selected),
    "expand": _expand,
    "permute": _permute,
    "transpose": _transpose,
    "t": _transpose,
    "bmm": _matrices,
    "cat": _joined,
    "slice": _sliced,
}
"""By the name of torch's operator, whichever of its overloads; element by element are those that torch says are."""
MOVING: Final = frozenset(
    (
        *("view", "_unsafe_view", "unsqueeze", "squeeze", "alias", "detach", "_reshape_alias"),
        *("expand", "permute", "transpose", "t", "clone"),
    )
)
"""Operators that compute nothing. Which of them torch takes depends on where dimensions of one element are."""


def rule_of(operator: torch._ops.OpOverload) -> Rule:
    """How the features go through an operator. Raises LostError for one that is not known."""
    name = operator.overloadpacket.__name__
    if name not in RULES and torch.Tag.pointwise not in operator.tags:
        raise LostError(f"what {name} does with them is not known")
    return RULES.get(name, _elements)


def taken_together(operator: str, shape: Sequence[int], arguments: Sequence[Any]) -> tuple[int, ...]:
    """How many elements of its first tensor an operator takes together, along each dimension that it goes along; ()
    where that is not known.
    """
    rule = RULES.get(operator, _elements)
    if rule is _matrices:
        return (shape[-1],)
    if rule in (_along, _reduce):
        return tuple(shape[dim] for dim in _dims(arguments, 1) or range(len(shape)))
    return ()


def one_by_one(operator: str) -> bool:
    """Of an operator that knows of features, whether it takes element by element."""
    return RULES.get(operator, _elements) is _elements
