"""Which layers stand on which pipeline stage, and how many ranks share what. Pure.

A stage holds one chunk of layers, or `virtual` chunks in turn: chunk c of stage r is piece c * pipeline + r of the
model, or, folded, the way back up: piece 2 * pipeline - 1 - r.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from kuangchao_contracts.base import Contract


class ImpossibleLayoutError(ValueError):
    """A model that cannot be cut this way."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the axes. `stage_layers`, when given, is the number of layers of each piece in order."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    data: int = 1
    virtual: int = 1
    sequence: bool = False
    vocab_whole: bool = False
    """Whether embedding and output layer are not divided by tensor parallelism."""
    stage_layers: tuple[int, ...] | None = None
    shard_ranks: int = 0
    """Ranks over which sharding divides a state, each such group holding all of it (hybrid sharding, HSDP of PyTorch);
    0: over every rank that holds the same parameters."""

    @property
    def world(self) -> int:
        """Ranks in all. Experts are spread over ranks that the other axes have already counted."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def expert_ranks(self) -> int:
        """Ranks over which the experts of a layer are divided."""
        return self.expert * self.expert_tensor

    @property
    def replicas(self) -> int:
        """Ranks with the same non-expert parameters, whose gradients are summed: context-parallel ranks count as
        data-parallel here."""
        return self.data * self.context

    @property
    def dense_shards(self) -> int:
        """Ranks over which sharding divides the states of non-expert parameters."""
        return self.shard_ranks or self.replicas

    @property
    def expert_shards(self) -> int:
        """Ranks over which sharding divides the states of the same experts."""
        return max(1, self.tensor * self.dense_shards // self.expert_ranks)

    @property
    def tokens_divided(self) -> int:
        """Over how many ranks the tokens outside tensor-parallel regions are divided."""
        return self.tensor if self.sequence else 1


class Piece(Contract):
    """A run of layers, with the embedding before it or the output layer after it."""

    first: int
    layers: int
    embedding: bool
    head: bool


def pieces(layers: int, layout: Layout, *, folded: bool = False) -> tuple[tuple[Piece, ...], ...]:
    """For each stage its chunks in the order in which they run. Raises ImpossibleLayoutError."""
    return _pieces(layers, layout.pipeline, layout.virtual, layout.stage_layers, folded)


@lru_cache(maxsize=256)
def _pieces(
    layers: int, pipeline: int, virtual: int, stage_layers: tuple[int, ...] | None, folded: bool
) -> tuple[tuple[Piece, ...], ...]:
    count = pipeline * virtual
    sizes = stage_layers or even(layers, count)
    if len(sizes) != count or sum(sizes) != layers or min(sizes) < 0:
        raise ImpossibleLayoutError(f"{layers} layers cannot be cut into {count} pieces of {sizes}")
    starts = list(accumulate(sizes, initial=0))
    run = [Piece(first=starts[n], layers=sizes[n], embedding=n == 0, head=n == count - 1) for n in range(count)]
    if folded and pipeline > 1:
        return tuple((run[r], run[count - 1 - r]) for r in range(pipeline))
    return tuple(tuple(run[r::pipeline]) for r in range(pipeline))


def even(layers: int, count: int) -> tuple[int, ...]:
    """The most even cut. Where it does not come out, embedding and output layer count as a layer each."""
    return (layers // count,) * count if layers % count == 0 else spared_ends(layers, count)


def spared_ends(layers: int, count: int) -> tuple[int, ...]:
    """The most even cut in which embedding and output layer count as a layer each. One piece gets all of it."""
    if count == 1:
        return (layers,)
    base, rest = divmod(layers + 2, count)
    sizes = [base] * count
    for n in range(rest):
        # what is left over goes to pieces after the first one: the first has the most micro-batches in flight
        sizes[(count - 1 - n) % count] += 1
    sizes[0] -= 1
    sizes[-1] -= 1
    if min(sizes) < 0:
        raise ImpossibleLayoutError(f"{layers} layers are too few for {count} pieces")
    return tuple(sizes)


def outer(layers: int, pipeline: int, first: int | None, last: int | None) -> tuple[int, ...]:
    """Layers of each stage when the outermost stages are given and the rest is even."""
    given = (first or 0) + (last or 0)
    middle = pipeline - (first is not None) - (last is not None)
    if middle < 1 or (layers - given) % middle:
        raise ImpossibleLayoutError(f"{layers} layers less {given} cannot be divided over {middle} stages")
    inner = ((layers - given) // middle,) * middle
    return (() if first is None else (first,)) + inner + (() if last is None else (last,))
