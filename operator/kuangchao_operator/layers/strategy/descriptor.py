"""Laws of a model's description: what contradicts itself, whoever trains the model and however it is split. Pure.

Asked by whoever takes a description in: the planner for a job, `describe-model` for a published configuration,
`calibrate` for a measured run. Bounds of single members are the schema's; here is what they must be to each other.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from kuangchao_contracts.plan import MeasuredModel, ModelDescriptor, TransformerModel
from kuangchao_operator.layers.strategy.footprint.counts import trainable_count
from kuangchao_operator.layers.strategy.numbers import either, nearest_divisors, nearest_multiples

PAIR: Final = 2
"""Features that a rotary position turns together: heads are of even width (Su et al. 2021, RoFormer, 3.2.2)."""


class Fault(NamedTuple):
    """A member that cannot be: its path, its value, why not, and the nearest legal value."""

    field: str
    value: int
    why: str
    nearest: str


def fault(model: ModelDescriptor) -> Fault | None:
    """The first law that a description breaks."""
    if isinstance(model, MeasuredModel):
        return _measured(model)
    return next((found for law in LAWS if (found := law(model)) is not None), None)


def _heads(model: TransformerModel) -> Fault | None:
    """Heads share the hidden size, where their width is not given."""
    if model.head_dim is not None or model.latent_attention is not None or model.hidden % model.heads == 0:
        return None
    why = f"does not divide model.hidden={model.hidden} and model.headDim is not set"
    return Fault("model.heads", model.heads, why, either(nearest_divisors(model.hidden, model.heads)))


def _kv_heads(model: TransformerModel) -> Fault | None:
    """Each key-value head serves as many query heads as any other (Ainslie et al. 2023, grouped queries)."""
    groups = model.kv_heads
    if groups is None or model.heads % groups == 0:
        return None
    near = either(nearest_divisors(model.heads, groups))
    return Fault("model.kvHeads", groups, f"does not divide model.heads={model.heads}", near)


def _width(model: TransformerModel) -> Fault | None:
    """Rotary positions turn pairs of features; beside learned ones any width will do."""
    latent = model.latent_attention
    if latent is not None:
        return _even("model.latentAttention.ropeDim", latent.rope_dim)
    if model.learned_positions:
        return None
    if model.head_dim is not None:
        return _even("model.headDim", model.head_dim)
    return _even(
        "model.headDim", model.hidden // model.heads, f"(model.hidden={model.hidden} / model.heads={model.heads}) "
    )


def _even(field: str, width: int, origin: str = "") -> Fault | None:
    if width % PAIR == 0:
        return None
    why = f"{origin}is odd, and rotary positions turn features in pairs"
    return Fault(field, width, why, either(nearest_multiples(width, PAIR)))


def _latent_width(model: TransformerModel) -> Fault | None:
    """With latent attention the width of a head is that of its two parts."""
    latent, stated = model.latent_attention, model.head_dim
    if latent is None or stated is None or stated == latent.nope_dim + latent.rope_dim:
        return None
    why = f"contradicts model.latentAttention, nopeDim={latent.nope_dim} + ropeDim={latent.rope_dim}"
    return Fault("model.headDim", stated, why, str(latent.nope_dim + latent.rope_dim))


def _parts(model: TransformerModel) -> Fault | None:
    """No part is more than its whole."""
    return next((_above(*bound) for bound in _bounds(model) if bound[1] > bound[3]), None)


def _bounds(model: TransformerModel) -> Iterator[tuple[str, int, str, int]]:
    yield "frozenLayers", model.frozen_layers, "layers", model.layers
    if model.experts is not None:
        yield "experts.perToken", model.experts.per_token, "experts.count", model.experts.count
    if model.adapter is not None:
        # Hu et al. 2022: a product of such matrices has no higher rank than what it is added to
        yield "adapter.rank", model.adapter.rank, "hidden", model.hidden
    if model.learned_positions and model.max_sequence is not None:
        yield "maxSequence", model.max_sequence, "learnedPositions", model.learned_positions


def _above(name: str, part: int, whole_name: str, whole: int) -> Fault:
    return Fault(f"model.{name}", part, f"is more than model.{whole_name}={whole}", str(whole))


def _expert_layers(model: TransformerModel) -> Fault | None:
    """Experts stand in some layer."""
    experts = model.experts
    if experts is None:
        return None
    if experts.dense_layers >= model.layers:
        why = f"leaves none of model.layers={model.layers} for the experts"
        return Fault("model.experts.denseLayers", experts.dense_layers, why, str(model.layers - 1))
    left = model.layers - experts.dense_layers
    if experts.every <= left:
        return None
    return Fault(
        "model.experts.every", experts.every, f"is more than the {left} layers that may have experts", str(left)
    )


def _trained(model: TransformerModel) -> Fault | None:
    """Something is trained: adapters in a layer that is not frozen, where there are adapters."""
    if trainable_count(model):
        return None
    why = "freezes every layer, and model.adapter the rest: nothing is left to train"
    return Fault("model.frozenLayers", model.frozen_layers, why, str(model.layers - 1))


def _measured(model: MeasuredModel) -> Fault | None:
    """As many parameters are trained as there are, or fewer, and not none."""
    trained = model.trainable_parameters
    if trained is not None and trained > model.parameters:
        return _above("trainableParameters", trained, "parameters", model.parameters)
    return Fault("model.trainableParameters", 0, "leaves nothing to train", "1") if trained == 0 else None


LAWS: Final = (_heads, _kv_heads, _latent_width, _width, _parts, _expert_layers, _trained)
"""In the order in which a person would want to hear of them."""
