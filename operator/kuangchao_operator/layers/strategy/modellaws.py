"""Laws of a model: what contradicts itself, or cannot be divided as asked. Pure.

Each takes a request and says what is broken, or None.
"""

from collections.abc import Callable
from typing import Final

from kuangchao_contracts.plan import MeasuredModel, PlanRequest, TransformerModel
from kuangchao_operator.layers.strategy import descriptor
from kuangchao_operator.layers.strategy.numbers import divisors
from kuangchao_operator.layers.strategy.runnable import NEUTRAL
from kuangchao_operator.layers.strategy.shown import as_written
from kuangchao_operator.layers.strategy.sizes import Broken

ACROSS: Final = ("tensor", "pipeline", "context", "expert")
"""Axes on which a rank waits for others in the middle of a layer or of a pass."""
_LENGTH: Final = "training.sequenceLength"


def _layers_to_cut(request: PlanRequest) -> Broken | None:
    """What tensor ranks and stages divide of a model of which only sizes are known its worker finds, or refuses. The
    rest divides sequences and experts, of which there is nothing to be known."""
    wire = request.parallelism.wire()
    axes = ("context", "expert", *(("sequence",) if wire.get("tensor", 1) > 1 else ()))
    axis = next((name for name in axes if wire.get(name, NEUTRAL[name]) != NEUTRAL[name]), None)
    if axis is None or isinstance(request.model, TransformerModel):
        return None
    known = "is known by its sizes only" if isinstance(request.model, MeasuredModel) else "is not described"
    why = f"parallelism.{axis}={as_written(wire[axis])}: the model {known}, so nothing says how to divide it"
    return Broken(f"parallelism.{axis}", wire[axis], why, hint="a spec.model of kind transformer")


def _description(request: PlanRequest) -> Broken | None:
    """A model that contradicts itself cannot be trained in any way."""
    model = request.model
    found = descriptor.fault(model) if model is not None else None
    if found is None:
        return None
    why = f"{found.field}={found.value} {found.why}"
    if found.field != "model.heads" or not isinstance(model, TransformerModel):
        return Broken(found.field, found.value, why, reason="InvalidSpec", near=found.nearest)
    # a width that no number of heads near to this one divides: then it is the width that is mistaken
    sizes = {"model.heads": model.heads, "model.hidden": model.hidden}
    field, other = sizes if _has_near(model.hidden, model.heads) else reversed(sizes)
    return Broken(field, sizes[field], why, (other,), reason="InvalidSpec", near=found.nearest)


def _has_near(hidden: int, heads: int) -> bool:
    """Whether a width is divided by some number of heads between half and twice as many."""
    return any(heads <= 2 * size <= 4 * heads for size in divisors(hidden))


def _sequence_known(request: PlanRequest) -> Broken | None:
    if not isinstance(request.model, TransformerModel) or request.training.sequence_length is not None:
        return None
    why = "training.sequenceLength is not set: the activations of a transformer cannot be estimated without it"
    return Broken(_LENGTH, "none", why, reason="InvalidSpec")


def _positions(request: PlanRequest) -> Broken | None:
    """Learned positions end: a longer sequence has no embedding to look up. Where positions are computed nothing
    fails, but a model that goes on beyond what it was made for is what somebody has to say (as for Megatron-LM).
    """
    model, length = request.model, request.training.sequence_length
    if not isinstance(model, TransformerModel) or length is None:
        return None
    learned, most = model.learned_positions, model.max_sequence
    head = f"{_LENGTH}={length} is more than"
    if learned and length > learned:
        return Broken(_LENGTH, length, f"{head} model.learnedPositions={learned}", reason="InvalidSpec")
    if most is None or length <= most:
        return None
    hint = "a larger model.maxSequence or none, where it is meant"
    return Broken(_LENGTH, length, f"{head} model.maxSequence={most}", hint=hint, reason="InvalidSpec")


LAWS: tuple[Callable[[PlanRequest], Broken | None], ...] = (
    _layers_to_cut,
    _description,
    _sequence_known,
    _positions,
)
"""In the order in which a person would want to hear of them."""
