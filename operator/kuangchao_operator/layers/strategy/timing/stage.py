"""Time of one micro-batch in each chunk of each pipeline stage: what a simulation of a schedule takes. Pure."""

from functools import lru_cache
from typing import NamedTuple

from kuangchao_contracts.plan import TransformerModel
from kuangchao_operator.layers.strategy.footprint import parameters as count
from kuangchao_operator.layers.strategy.footprint.layout import Layout, Piece, pieces
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.timing import collectives
from kuangchao_operator.layers.strategy.timing.clock import Clock, clock_of, element
from kuangchao_operator.layers.strategy.timing.hardware import Hardware
from kuangchao_operator.layers.strategy.timing.layer import LayerTime, Pass, Work, frozen, layer_time, work_of
from kuangchao_operator.layers.strategy.timing.machine import Machine

MICRO = 1e6
LOGIT = 4
"""Bytes of a logit where the loss is computed."""


class StageTime(NamedTuple):
    """One micro-batch in one chunk of a stage, in microseconds; `backward` is without the gradients of weights.

    A chunk hands `send_bytes` on to the next one, and as much back, in `send_us`; the model's last chunk sends only
    back, its first one only on.
    """

    stage: int
    chunk: int
    forward_us: int
    backward_us: int
    weight_us: int
    send_bytes: int
    send_us: int


class Counts(NamedTuple):
    """What a chunk runs, by kind: layers that are trained and such that are not, embedding, output layer."""

    dense: int
    moe: int
    frozen_dense: int
    frozen_moe: int
    embedding: int
    head: int


class Kinds(NamedTuple):
    """The time of each kind of Counts, and its sum in seconds."""

    times: tuple[LayerTime, ...]
    seconds: tuple[float, ...]


def stage_times(setting: Setting, machine: Machine, hardware: Hardware) -> tuple[StageTime, ...]:
    """Every chunk of every stage, stage by stage, chunks in the order in which a micro-batch meets them.

    Raises ImpossibleLayoutError.
    """
    clock = clock_of(machine, hardware)
    times = kinds(work_of(setting), clock)
    size, seconds = hop_bytes(setting), hop(setting, clock)
    found = []
    for stage, chunks in enumerate(cut(setting.model, setting.layout, folded=setting.folded)):
        for chunk, counts in enumerate(chunks):
            time = total(counts, times)
            found.append(
                StageTime(
                    stage=stage,
                    chunk=chunk,
                    forward_us=round(time.forward.total * MICRO),
                    backward_us=round(time.backward.total * MICRO),
                    weight_us=round(time.weight * MICRO),
                    send_bytes=size,
                    send_us=round(seconds * MICRO),
                )
            )
    return tuple(found)


def total(counts: Counts, times: Kinds) -> LayerTime:
    """The time of all that a chunk, or a stage of several chunks, runs."""
    forward = backward = Pass()
    weight = 0.0
    for number, time in zip(counts, times.times, strict=True):
        if number:
            forward = _add(forward, number, time.forward)
            backward = _add(backward, number, time.backward)
            weight += number * time.weight
    return LayerTime(forward, backward, weight)


def _add(have: Pass, number: int, more: Pass) -> Pass:
    return Pass(
        have.compute + number * more.compute,
        have.tensor + number * more.tensor,
        have.expert + number * more.expert,
        have.context + number * more.context,
    )


@lru_cache(maxsize=8192)
def kinds(work: Work, clock: Clock) -> Kinds:
    """The time of each kind of layer, and of the ends of the model."""
    dense = layer_time(work, clock, moe=False)
    moe = layer_time(work, clock, moe=True) if work.model.experts is not None else dense
    times = (dense, moe, frozen(dense), frozen(moe), _embedding(work, clock), _head(work, clock))
    return Kinds(times, tuple(time.forward.total + time.backward.total + time.weight for time in times))


@lru_cache(maxsize=8192)
def cut(model: TransformerModel, layout: Layout, *, folded: bool) -> tuple[tuple[Counts, ...], ...]:
    """What each chunk of each stage runs. Raises ImpossibleLayoutError."""
    return tuple(
        tuple(_counts(model, piece) for piece in stage) for stage in pieces(model.layers, layout, folded=folded)
    )


def hop_bytes(setting: Setting) -> int:
    """What a rank hands to the next stage for one micro-batch: tensor-parallel ranks send a share each (Narayanan et
    al. 2021, scatter and gather)."""
    size = setting.tokens * setting.model.hidden * element(setting.precision)
    return size // setting.layout.tensor if setting.layout.pipeline > 1 else 0


def hop(setting: Setting, clock: Clock) -> float:
    """Seconds of handing it on."""
    layout = setting.layout
    if layout.pipeline == 1:
        return 0.0
    links = clock.links.reach(layout.pipeline, layout.tensor * layout.context * layout.data)
    size = hop_bytes(setting)
    sent = collectives.send(size, links, clock.start)
    if layout.tokens_divided == layout.tensor:
        return sent
    return sent + collectives.scatter(size * layout.tensor, clock.links.reach(layout.tensor, 1), clock.start)


def _counts(model: TransformerModel, piece: Piece) -> Counts:
    stop = piece.first + piece.layers
    trained = min(stop, max(piece.first, model.frozen_layers))
    dense, moe = (count.layers_of(model, trained, stop, moe=kind) for kind in (False, True))
    still, still_moe = (count.layers_of(model, piece.first, trained, moe=kind) for kind in (False, True))
    return Counts(dense, moe, still, still_moe, int(piece.embedding), int(piece.head))


def _embedding(work: Work, clock: Clock) -> LayerTime:
    """A lookup, and the sum over the ranks that divide the vocabulary."""
    elements = float(work.tokens * work.model.hidden)
    moved = clock.passes(3, elements / work.divided, work.precision)
    links = clock.links.reach(work.tensor, 1)
    summed = collectives.all_reduce(elements * element(work.precision), links, clock.start)
    back = Pass(compute=moved) if count.trains_embedding(work.model) else Pass()
    return LayerTime(Pass(compute=moved, tensor=summed), back, 0.0)


def _head(work: Work, clock: Clock) -> LayerTime:
    """The output layer and the loss over its logits, which are joined before it or stay divided by vocabulary."""
    model, software = work.model, clock.hardware.software_of(work.backend)
    columns, rows, inner = model.vocab / work.tensor, float(work.tokens), float(model.hidden)
    links = clock.links.reach(work.tensor, 1)
    read = rows * (model.vocab if work.joined else columns)
    logits = clock.moved(software.logit_passes * read * LOGIT / 2)
    joined = collectives.scatter(read * element(work.precision), links, clock.start) if work.joined else 0.0
    summed = collectives.all_reduce(rows * inner * element(work.precision), links, clock.start)
    weight = clock.matmul(inner, columns, rows, work.precision) if count.trains_head(model) else 0.0
    forward = Pass(compute=clock.matmul(rows, columns, inner, work.precision) + logits, tensor=joined)
    backward = Pass(compute=clock.matmul(rows, inner, columns, work.precision) + logits, tensor=summed)
    return LayerTime(forward, backward, weight)
