"""Laws of a model: what contradicts itself, or cannot be divided as asked. Pure.

Each takes a request and returns the Infeasible it finds, with field, value and nearest legal value, or None.
"""

from collections.abc import Callable
from typing import Final

from kuangchao_contracts.plan import Infeasible, MeasuredModel, PlanRequest, TransformerModel
from kuangchao_operator.layers.strategy.numbers import either, nearest_divisors
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
    """Learned positions end: a longer sequence has no embedding to look up."""
    most = model.learned_positions
    if not most or length <= most:
        return None
    return refused(
        reason="InvalidSpec",
        field="training.sequenceLength",
        value=str(length),
        nearest=str(most),
        message=f"training.sequenceLength={length} is more than model.learnedPositions={most}; nearest legal"
        f" training.sequenceLength: {most}",
    )


def _heads_divide(request: PlanRequest) -> Infeasible | None:
    model = request.model
    if not isinstance(model, TransformerModel) or model.head_dim is not None or model.latent_attention is not None:
        return None
    if model.hidden % model.heads == 0:
        return None
    near = either(nearest_divisors(model.hidden, model.heads))
    return refused(
        reason="InvalidSpec",
        field="model.heads",
        value=str(model.heads),
        nearest=near,
        message=f"model.heads={model.heads} does not divide model.hidden={model.hidden} and model.headDim is not set;"
        f" nearest legal model.heads: {near}",
    )


def _parts_within_whole(request: PlanRequest) -> Infeasible | None:
    """A token cannot visit more experts than there are, nor can more layers be frozen or plain than there are."""
    model = request.model
    if not isinstance(model, TransformerModel):
        return None
    bounds = [("frozenLayers", model.frozen_layers, "layers", model.layers)]
    if model.experts is not None:
        bounds += [
            ("experts.perToken", model.experts.per_token, "experts.count", model.experts.count),
            ("experts.denseLayers", model.experts.dense_layers, "layers", model.layers),
        ]
    for name, part, whole_name, whole in bounds:
        if part > whole:
            return refused(
                reason="InvalidSpec",
                field=f"model.{name}",
                value=str(part),
                nearest=str(whole),
                message=f"model.{name}={part} is more than model.{whole_name}={whole}; nearest legal model.{name}:"
                f" {whole}",
            )
    return None


LAWS: tuple[Callable[[PlanRequest], Infeasible | None], ...] = (
    _layers_to_cut,
    _sequence_known,
    _heads_divide,
    _parts_within_whole,
)
"""In the order in which a person would want to hear of them."""
