"""Laws that a layout must keep before its memory means anything, each with the nearest legal value. Pure.

Each was seen as a crash or a silently different model somewhere. Whether a layout is good is not said here.
"""

from collections.abc import Callable
from typing import NamedTuple

from kuangchao_operator.layers.strategy.footprint.schedules import group_size
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.laws import divisors, either, nearest_divisors, nearest_multiples


class Contradiction(NamedTuple):
    """What cannot be, by field."""

    field: str
    value: int
    nearest: str
    message: str


def contradiction(setting: Setting, devices: int | None = None) -> Contradiction | None:
    """The first law that a setting breaks; `devices` is how many there are, where that is given."""
    if devices is not None and setting.layout.world != devices:
        return _world(setting, devices)
    return next((found for law in LAWS if (found := law(setting)) is not None), None)


def _world(setting: Setting, devices: int) -> Contradiction:
    layout, rest = setting.layout, setting.layout.world // setting.layout.data
    nearest = either(nearest_multiples(devices, rest))
    return Contradiction(
        "devices",
        devices,
        nearest,
        f"devices={devices} is not tensor {layout.tensor} x pipeline {layout.pipeline} x context {layout.context}"
        f" x data {layout.data} = {layout.world}; nearest legal devices for tensor x pipeline x context: {nearest}",
    )


def _heads(setting: Setting) -> Contradiction | None:
    heads = setting.model.heads
    return _divides("tensor", setting.layout.tensor, heads, f"{heads} heads")


def _kv_heads(setting: Setting) -> Contradiction | None:
    model = setting.model
    if model.latent_attention is not None or model.kv_heads is None:
        return None
    return _divides("tensor", setting.layout.tensor, model.kv_heads, f"{model.kv_heads} key-value heads")


def _experts(setting: Setting) -> Contradiction | None:
    experts, expert = setting.model.experts, setting.layout.expert
    if experts is None:
        return (
            None if expert == 1 else Contradiction("expert", expert, "1", f"expert={expert}: the model has no experts")
        )
    return _divides("expert", expert, experts.count, f"{experts.count} experts")


def _expert_ranks(setting: Setting) -> Contradiction | None:
    layout = setting.layout
    ranks = layout.tensor * layout.context * layout.data
    if ranks % layout.expert_ranks == 0:
        return None
    nearest = either(nearest_divisors(ranks, layout.expert))
    return Contradiction(
        "expert",
        layout.expert,
        nearest,
        f"expert={layout.expert} x expert tensor {layout.expert_tensor} does not divide the {ranks} ranks of a pipeline"
        f" stage; nearest legal expert for whole experts: {nearest}",
    )


def _sequence(setting: Setting) -> Contradiction | None:
    layout, length = setting.layout, setting.sequence_length
    if layout.sequence and layout.tensor > 1 and length % layout.tensor:
        return _divides("tensor", layout.tensor, length, f"sequence length {length} (sequence parallelism)")
    if layout.context > 1 and length % (2 * layout.context):
        nearest = either(nearest_divisors(length // 2, layout.context)) if length > 1 else "1"
        return Contradiction(
            "context",
            layout.context,
            nearest,
            f"context={layout.context} cuts sequence length {length} into {2 * layout.context} unequal pieces;"
            f" nearest legal context: {nearest}",
        )
    return None


def _interleaving(setting: Setting) -> Contradiction | None:
    layout, batches = setting.layout, setting.micro_batches
    if layout.virtual == 1:
        return None
    if layout.pipeline == 1:
        return Contradiction("virtualStages", layout.virtual, "1", f"virtualStages={layout.virtual} needs a pipeline")
    group = group_size(layout.pipeline, batches)
    if batches >= layout.pipeline and (batches % group == 0 or batches % group >= layout.pipeline):
        return None
    nearest = either(nearest_multiples(batches, layout.pipeline))
    return Contradiction(
        "microBatches",
        batches,
        nearest,
        f"{batches} micro-batches are fewer than the {layout.pipeline} stages that interleave; nearest legal number:"
        f" {nearest}",
    )


def _divides(field: str, size: int, whole: int, what: str) -> Contradiction | None:
    if whole % size == 0:
        return None
    nearest = either(nearest_divisors(whole, size))
    legal = ", ".join(str(n) for n in reversed(divisors(whole)[-12:]))
    return Contradiction(
        field,
        size,
        nearest,
        f"{field}={size} does not divide {what}: it may be {legal}; nearest legal {field}: {nearest}",
    )


LAWS: tuple[Callable[[Setting], Contradiction | None], ...] = (
    _heads,
    _kv_heads,
    _experts,
    _expert_ranks,
    _sequence,
    _interleaving,
)
"""In the order in which a person would want to hear of them."""
