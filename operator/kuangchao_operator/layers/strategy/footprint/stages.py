"""What a pipeline stage holds: its parameters, and the activations of all micro-batches in flight. Pure."""

from typing import NamedTuple

from kuangchao_operator.layers.strategy.footprint import parameters as count
from kuangchao_operator.layers.strategy.footprint.activations import LayerMemory, hidden_bytes, layer_memory
from kuangchao_operator.layers.strategy.footprint.calibration import Backend
from kuangchao_operator.layers.strategy.footprint.layout import Piece, pieces
from kuangchao_operator.layers.strategy.footprint.parameters import Share
from kuangchao_operator.layers.strategy.footprint.schedules import in_flight
from kuangchao_operator.layers.strategy.footprint.setting import Setting


class Stage(NamedTuple):
    """One stage, as far as counting goes."""

    number: int
    held: Share
    trained: Share
    largest: Share
    """The largest layer."""
    end: Share
    """The larger of embedding and output layer, as far as the stage has them."""
    has_head: bool
    activations: int
    transient: int
    """What comes and goes while the layer that needs most runs its backward pass."""
    layers_in_flight: int


class _Layers(NamedTuple):
    """What layers of one kind are, on one rank."""

    moe: bool
    share: Share
    memory: LayerMemory


def stages(setting: Setting, backend: Backend) -> tuple[Stage, ...]:
    """All stages of a setting."""
    kinds = [
        _Layers(moe, count.layer(setting.model, moe=moe), layer_memory(setting, backend, moe=moe))
        for moe in (False, True)
        if count.layers_of(setting.model, 0, setting.model.layers, moe=moe)
    ]
    cut = pieces(setting.model.layers, setting.layout, folded=setting.folded)
    return tuple(_stage(index, chunks, kinds, setting, backend) for index, chunks in enumerate(cut))


def padded_vocab(setting: Setting, backend: Backend) -> int:
    """The vocabulary as the framework pads it, so that tensor parallelism divides it."""
    multiple = backend.vocab_multiple * setting.layout.tensor
    return -(-setting.model.vocab // multiple) * multiple


def _stage(index: int, chunks: tuple[Piece, ...], kinds: list[_Layers], setting: Setting, backend: Backend) -> Stage:
    model, layout = setting.model, setting.layout
    flying = in_flight(setting.schedule, index, layout.pipeline, layout.virtual, setting.micro_batches)
    held, trained, activations, layers = Share(), Share(), 0, 0
    for chunk, micro_batches in zip(chunks, flying, strict=True):
        stop = chunk.first + chunk.layers
        held = held.plus(count.run(model, chunk.first, stop))
        trained = trained.plus(count.trainable_run(model, chunk.first, stop))
        activations += micro_batches * _kept(chunk, kinds, setting, backend)
        layers += micro_batches * chunk.layers
    ends = [end for chunk in chunks for end in _ends(chunk, setting, backend)]
    for share, trains in ends:
        held = held.plus(share)
        trained = trained.plus(share) if trains else trained
    here = [kind for kind in kinds if any(_number(chunk, kind, setting) for chunk in chunks)]
    return Stage(
        number=index,
        held=held,
        trained=trained,
        largest=max((kind.share for kind in here), key=lambda share: share.total, default=Share()),
        end=max((share for share, _ in ends), key=lambda share: share.total, default=Share()),
        has_head=any(chunk.head for chunk in chunks),
        activations=activations,
        transient=max((k.memory.whole - k.memory.kept + k.memory.working for k in here), default=0),
        layers_in_flight=layers,
    )


def _number(chunk: Piece, kind: _Layers, setting: Setting) -> int:
    return count.layers_of(setting.model, chunk.first, chunk.first + chunk.layers, moe=kind.moe)


def _kept(chunk: Piece, kinds: list[_Layers], setting: Setting, backend: Backend) -> int:
    """What one micro-batch leaves in a chunk. Layers below the first one that is trained keep nothing."""
    stop = chunk.first + chunk.layers
    first = min(stop, max(chunk.first, setting.model.frozen_layers))
    total = sum(k.memory.kept * count.layers_of(setting.model, first, stop, moe=k.moe) for k in kinds)
    mask = chunk.embedding and setting.dropout
    return total + (hidden_bytes(setting, backend) // backend.element[setting.precision] if mask else 0)


def _ends(chunk: Piece, setting: Setting, backend: Backend) -> list[tuple[Share, bool]]:
    """Embedding, final norm and output layer of a chunk, and whether they are trained.

    A tied output layer on another stage than the embedding is a copy, with a gradient and states of its own.
    """
    model, vocab, found = setting.model, padded_vocab(setting, backend), []
    if chunk.embedding:
        found.append((count.embedding(model, vocab), count.trains_embedding(model)))
    if chunk.head:
        found.append((count.final_norm(model), count.trains_head(model)))
        if not (model.tied_embeddings and setting.layout.pipeline == 1):
            found.append((count.head(model, vocab), count.trains_head(model)))
    return found
