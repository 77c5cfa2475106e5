"""All ways to divide a job's ranks over the axes, and its batch into micro-batches, that no law forbids. Pure."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from kuangchao_operator.layers.strategy.combination import whole_groups
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.legality import lawful
from kuangchao_operator.layers.strategy.numbers import divisors
from kuangchao_operator.layers.strategy.search.space import Space

LEAST_TOKENS: Final = 1_024
"""Tokens of a sequence below which a context-parallel rank has too little work to be worth its messages."""


class Sketch(NamedTuple):
    """Sizes of the axes and of a micro-batch, before anything is said of schedule, recomputation and sharding."""

    layout: Layout
    micro_batch: int
    micro_batches: int


def layouts(space: Space) -> Iterator[Layout]:
    """Layouts that use every rank, those that divide the model least first."""
    for tensor in _tensor(space):
        for context in _context(space, tensor):
            for pipeline in _pipeline(space, tensor * context):
                data = space.world // (tensor * context * pipeline)
                if data not in space.options("data", (data,)) or (space.managed and space.global_batch % data):
                    continue
                sequence = _sequence(space, tensor, context)
                for expert, expert_tensor in _experts(space, tensor, tensor * context * data):
                    if expert > 1 and tensor > 1 and not sequence:
                        continue  # every tensor rank would send the same tokens to the experts
                    yield Layout(
                        tensor=tensor,
                        pipeline=pipeline,
                        context=context,
                        data=data,
                        expert=expert,
                        expert_tensor=expert_tensor,
                        sequence=sequence,
                    )


def sketches(space: Space, layout: Layout) -> Iterator[Sketch]:
    """Micro-batches of a layout, the smallest first; a pipeline has at least as many of them as stages."""
    share = -(-space.global_batch // layout.data)
    if not space.managed:
        # the command's own: the fullest rank's share, as if in one pass
        yield Sketch(layout, next(iter(space.options("microBatch", (share,)))), 1)
        return
    for micro in space.options("microBatch", divisors(share)[::-1]):
        if share % micro == 0 and (layout.pipeline == 1 or share // micro >= layout.pipeline):
            sketch = Sketch(layout, micro, share // micro)
            if lawful(plain(space, sketch)):
                yield sketch


def plain(space: Space, sketch: Sketch) -> Setting:
    """A sketch with nothing sharded and nothing recomputed, its pipeline in the simplest order."""
    training = space.training
    return Setting(
        model=space.model,
        layout=sketch.layout,
        sequence_length=training.sequence_length or 1,
        micro_batch=sketch.micro_batch,
        micro_batches=sketch.micro_batches,
        precision=training.precision,
        optimizer=training.optimizer,
        backend=space.backend,
        logits_joined=True,
        plain_ddp=not space.managed,
    )


def _tensor(space: Space) -> tuple[int, ...]:
    widths = [space.model.heads, space.model.ffn]
    if space.model.kv_heads is not None and space.model.latent_attention is None:
        widths.append(space.model.kv_heads)
    found = tuple(
        size
        for size in divisors(space.world)[::-1]
        if whole_groups(size, space.island, space.per_pod) and not any(width % size for width in widths)
    )
    return tuple(size for size in space.options("tensor", found) if space.world % size == 0)


def _context(space: Space, taken: int) -> tuple[int, ...]:
    length, rest = space.training.sequence_length or 1, space.world // taken
    found = tuple(
        size
        for size in divisors(rest)[::-1]
        if size == 1 or (length % (2 * size) == 0 and length >= LEAST_TOKENS * size)
    )
    return tuple(size for size in space.options("context", found) if rest % size == 0)


def _pipeline(space: Space, taken: int) -> tuple[int, ...]:
    rest = space.world // taken
    found = tuple(size for size in divisors(rest)[::-1] if size <= space.pieces)
    return tuple(size for size in space.options("pipeline", found) if rest % size == 0 and size <= space.pieces)


def _experts(space: Space, tensor: int, ranks: int) -> Iterator[tuple[int, int]]:
    """How many ranks the experts of a layer are divided over, and how many divide each of their matrices."""
    experts = space.model.experts
    if experts is None:
        yield from ((size, 1) for size in space.options("expert", (1,)))
        return
    for size in space.options("expert", divisors(experts.count)[::-1]):
        # matrices of an expert are divided only where there are no more whole experts to give away
        for within in sorted({1, tensor} if size == experts.count or "expert" in space.pins else {1}):
            if ranks % (size * within) == 0 and experts.ffn % within == 0:
                yield size, within


def _sequence(space: Space, tensor: int, context: int) -> bool:
    """Sequence parallelism costs no bytes on the wire, so it is used wherever it divides."""
    length = space.training.sequence_length or 1
    fits = tensor > 1 and length % (tensor * context) == 0
    return bool(space.options("sequence", (fits,))[0])
