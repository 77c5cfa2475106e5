"""What a pipeline stage holds: its parameters, and the activations of all micro-batches in flight. Pure."""

from typing import NamedTuple

from kuangchao_contracts.plan import TransformerModel
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
    whole_in_flight: int = 0
    """Micro-batches in flight of which all is counted, since no layers of the model are known; 0: they are."""
    fixed: int = 0
    """Buffers of modules: neither trained nor divided."""


class _Layers(NamedTuple):
    """What layers of one kind are."""

    moe: bool
    held: Share
    trained: Share
    memory: LayerMemory


def stages(setting: Setting, backend: Backend, only: frozenset[int] | None = None) -> tuple[Stage, ...]:
    """All stages of a setting, or those of `only`."""
    model = setting.model
    kinds = [
        _Layers(
            moe=moe,
            held=count.layer(model, moe=moe).plus(count.adapters(model, moe=moe)),
            trained=count.trainable_layer(model, moe=moe),
            memory=layer_memory(setting, backend, moe=moe),
        )
        for moe in (False, True)
        if count.layers_of(model, 0, model.layers, moe=moe)
    ]
    cut = pieces(model.layers, setting.layout, folded=setting.folded)
    return tuple(
        _stage(number, chunks, kinds, setting, backend)
        for number, chunks in enumerate(cut)
        if only is None or number in only
    )


def decisive(setting: Setting) -> frozenset[int] | None:
    """Stages among which the fullest is; None: any may be it.

    Of stages with equally many layers of one kind the first or the last has the most: the number of micro-batches in
    flight rises or falls along a pipeline, and embedding and output layer are at its ends.
    """
    if not alike(setting.model):
        return None
    first: dict[tuple[int, ...], int] = {}
    last: dict[tuple[int, ...], int] = {}
    for number, chunks in enumerate(pieces(setting.model.layers, setting.layout, folded=setting.folded)):
        sizes = tuple(chunk.layers for chunk in chunks)
        first.setdefault(sizes, number)
        last[sizes] = number
    return frozenset((0, setting.layout.pipeline - 1, *first.values(), *last.values()))


def alike(model: TransformerModel) -> bool:
    """Whether it is no matter which layers a stage has, only how many."""
    mixed = model.experts is not None and (model.experts.dense_layers > 0 or model.experts.every > 1)
    return not mixed and not model.frozen_layers


def padded_vocab(setting: Setting, backend: Backend) -> int:
    """The vocabulary as the framework pads it, so that tensor parallelism divides it."""
    multiple = backend.vocab_multiple * setting.layout.tensor
    return -(-setting.model.vocab // multiple) * multiple


def _stage(number: int, chunks: tuple[Piece, ...], kinds: list[_Layers], setting: Setting, backend: Backend) -> Stage:
    flying = in_flight(setting.schedule, number, setting.layout.pipeline, setting.layout.virtual, setting.micro_batches)
    run = list(zip(chunks, flying, strict=True))
    held, trained = _parameters(chunks, kinds, setting)
    ends = [end for chunk in chunks for end in _ends(chunk, setting, backend)]
    for share, trains in ends:
        held = held.plus(share)
        trained = trained.plus(share) if trains else trained
    here = [kind for kind in kinds if any(_layers(chunk, kind, setting) for chunk in chunks)]
    return Stage(
        number=number,
        held=held,
        trained=trained,
        largest=max((kind.held for kind in here), key=_size, default=Share()),
        end=max((share for share, _ in ends), key=_size, default=Share()),
        has_head=any(chunk.head for chunk in chunks),
        activations=sum(batches * _kept(chunk, kinds, setting, backend) for chunk, batches in run),
        transient=max((k.memory.whole - k.memory.kept + k.memory.working for k in here), default=0),
        layers_in_flight=sum(batches * chunk.layers for chunk, batches in run),
    )


def _parameters(chunks: tuple[Piece, ...], kinds: list[_Layers], setting: Setting) -> tuple[Share, Share]:
    held, trained = Share(), Share()
    for chunk in chunks:
        for kind in kinds:
            held = held.plus(kind.held.times(_layers(chunk, kind, setting)))
            trained = trained.plus(kind.trained.times(_trained_layers(chunk, kind, setting)))
    return held, trained


def _size(share: Share) -> int:
    return share.total


def _layers(chunk: Piece, kind: _Layers, setting: Setting) -> int:
    return count.layers_of(setting.model, chunk.first, chunk.first + chunk.layers, moe=kind.moe)


def _trained_layers(chunk: Piece, kind: _Layers, setting: Setting) -> int:
    stop = chunk.first + chunk.layers
    return count.layers_of(setting.model, min(stop, max(chunk.first, setting.model.frozen_layers)), stop, moe=kind.moe)


def _kept(chunk: Piece, kinds: list[_Layers], setting: Setting, backend: Backend) -> int:
    """What one micro-batch leaves in a chunk. Layers below the first one that is trained keep nothing."""
    total = sum(kind.memory.kept * _trained_layers(chunk, kind, setting) for kind in kinds)
    if not (chunk.embedding and setting.dropout):
        return total
    return total + hidden_bytes(setting, backend) // backend.element[setting.precision]


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
