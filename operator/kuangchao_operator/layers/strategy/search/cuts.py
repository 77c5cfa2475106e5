"""How many layers each piece of a pipeline may get: a few cuts, so that some stage is spared. Pure.

Which of them is best is for time and memory to say: the first stage holds most micro-batches and the embedding, the
last one has the output layer. No piece is left without a
layer, unless that is pinned.
"""

from bisect import bisect_right
from collections.abc import Iterator

from kuangchao_contracts.plan import TransformerModel
from kuangchao_operator.layers.strategy.footprint.layout import spared_ends
from kuangchao_operator.layers.strategy.search.space import Space
from kuangchao_operator.layers.strategy.timing.flops import layer_weights, score_operations

Cut = tuple[int, ...]


def cuts(space: Space, pipeline: int, virtual: int) -> Iterator[Cut | None]:
    """Cuts for so many stages of so many chunks, the simplest first; None stands for one that is even and comes out.

    There are none where the layers are too few. Where they are not known it is for the worker to say what is even, and
    whether a pinned cut has all of them.
    """
    count = pipeline * virtual
    layers, pinned = space.model.layers, space.pins.get("stageLayers")
    if pinned:
        if len(pinned) == count and (sum(pinned) == layers or not space.shaped):
            yield tuple(pinned)
    elif not space.shaped:
        yield None
    elif layers >= count:
        found = (*_plain(layers, count), *(_faster(space, count) if virtual == 1 else ()))
        yield from (None if one == (layers // count,) * count else one for one in found)


def _plain(layers: int, count: int) -> Iterator[Cut]:
    """What comes out even, and what spares both ends a layer where there are enough."""
    even, ends = layers % count == 0, layers + 2 >= 2 * count
    if even or not ends:
        yield balanced(layers, count)
    if ends and (not even or spared_ends(layers, count) != balanced(layers, count)):
        yield spared_ends(layers, count)


def _faster(space: Space, count: int) -> Iterator[Cut]:
    """What spares the last stage as much as the output layer is worth, where that makes the heaviest stage lighter.

    Chunks are too small for it to be worth more than a layer, and there the last stage has others too.
    """
    layers, weight = space.model.layers, output_weight(space)
    found = last_spared(layers, count, weight)
    if _load(found, weight) < min(_load(one, weight) for one in _plain(layers, count)):
        yield found


def balanced(layers: int, count: int) -> Cut:
    """Even but for one layer: what is left over goes to inner pieces, late ones first, and only then to the first."""
    base, rest = divmod(layers, count)
    sizes = [base] * count
    for n in range(rest):
        sizes[(count - 2 - n) % count] += 1
    return tuple(sizes)


def last_spared(layers: int, count: int, weight: int) -> Cut:
    """The cut in which the heaviest piece is lightest, where the output layer counts as `weight` layers."""
    rest, most = count - 1, layers // count

    def excess(own: int) -> int:
        """How far the last piece is above the heaviest of the others: the more, the more layers it has of its own."""
        return own + weight - -(-(layers - own) // rest)

    # up to where it is not above them more layers of its own make the others lighter, beyond it itself heavier
    level = bisect_right(range(1, most + 1), 0, key=excess)
    near = {max(1, level), min(most, level + 1)}
    last = min(near, key=lambda own: (own + weight - min(0, excess(own)), -own))
    return (*balanced(layers - last, rest), last)


def _load(cut: Cut, weight: int) -> int:
    """Layers of the heaviest piece, the output layer among them."""
    return max(*cut[:-1], cut[-1] + weight)


def output_weight(space: Space) -> int:
    """Layers that have about as many operations as the output layer; 1 at the least."""
    model = space.model
    layer = _operations(model, space.training.sequence_length or 1)
    return max(1, (2 * model.hidden * model.vocab + layer // 2) // layer)


def _operations(model: TransformerModel, sequence: int) -> int:
    """Of one token in one of the last layers, forward."""
    return 2 * layer_weights(model, moe=model.experts is not None) + score_operations(model, sequence)
