"""Laws of a model: what contradicts itself, or cannot be divided as asked. Pure.

Each takes a request and returns the Infeasible it finds, with field, value and nearest legal value, or None.
"""

from collections.abc import Callable
from typing import Final

from kuangchao_contracts.plan import Infeasible, MeasuredModel, PlanRequest, TransformerModel
from kuangchao_operator.layers.strategy import descriptor
from kuangchao_operator.layers.strategy.refusal import refused

ACROSS: Final = ("tensor", "pipeline", "context", "expert")
"""Axes on which a rank waits for others in the middle of a layer or of a pass."""


def _layers_to_cut(request: PlanRequest) -> Infeasible | None:
    """A model of which only sizes are known has nothing that could be divided."""
    wire = request.parallelism.wire()
    axis = next((name for name in ACROSS if wire.get(name, 1) > 1), None)
    if axis is None or isinstance(request.model, TransformerModel):
        return None
    known = "is known by its sizes only" if isinstance(request.model, MeasuredModel) else "is not described"
    return refused(
        reason="ContradictoryPlan",
        field=f"parallelism.{axis}",
        value=str(wire[axis]),
        nearest="1",
        message=f"parallelism.{axis}={wire[axis]}: the model {known}, so nothing says how to divide it; nearest legal"
        f" parallelism.{axis}: 1, or a spec.model of kind transformer",
    )


def _sequence_known(request: PlanRequest) -> Infeasible | None:
    model, length = request.model, request.training.sequence_length
    if not isinstance(model, TransformerModel):
        return None
    if length is not None:
        return _positions(model, length)
    return refused(
        reason="InvalidSpec",
        field="training.sequenceLength",
        message="training.sequenceLength is not set: the activations of a transformer cannot be estimated without it",
    )


def _positions(model: TransformerModel, length: int) -> Infeasible | None:
    """Learned positions end: a longer sequence has no embedding to look up. Where positions are computed nothing
    fails, but a model that goes on beyond what it was made for is what somebody has to say (as for Megatron-LM).
    """
    learned, most = model.learned_positions, model.max_sequence
    if learned and length > learned:
        return _too_long(length, f"model.learnedPositions={learned}", learned)
    if most is not None and length > most:
        return _too_long(
            length, f"model.maxSequence={most}", most, "; where it is meant, raise or drop model.maxSequence"
        )
    return None


def _too_long(length: int, bound: str, nearest: int, otherwise: str = "") -> Infeasible:
    return refused(
        reason="InvalidSpec",
        field="training.sequenceLength",
        value=str(length),
        nearest=str(nearest),
        message=f"training.sequenceLength={length} is more than {bound}; nearest legal training.sequenceLength:"
        f" {nearest}{otherwise}",
    )


def _description(request: PlanRequest) -> Infeasible | None:
    """A model that contradicts itself cannot be trained in any way."""
    found = descriptor.fault(request.model) if request.model is not None else None
    if found is None:
        return None
    return refused(
        reason="InvalidSpec", field=found.field, value=str(found.value), nearest=found.nearest, message=found.message
    )


LAWS: tuple[Callable[[PlanRequest], Infeasible | None], ...] = (
    _layers_to_cut,
    _description,
    _sequence_known,
)
"""In the order in which a person would want to hear of them."""
