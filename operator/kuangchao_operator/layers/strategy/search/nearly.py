"""The divisions of a job's ranks that break fewest laws, where all break one: what stands in the way. Pure."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from kuangchao_contracts.planwords import axes
from kuangchao_operator.layers.strategy.legality import faults
from kuangchao_operator.layers.strategy.numbers import divisors
from kuangchao_operator.layers.strategy.search.layouts import LEAST_TOKENS
from kuangchao_operator.layers.strategy.search.space import Space
from kuangchao_operator.layers.strategy.sizes import Broken, Sizes
from kuangchao_operator.layers.strategy.staging import fewest_chunks

MOST_JUDGED: Final = 4_096
"""Divisions that are judged: those of 65,536 ranks over four axes are fewer."""
MOST_NAMED: Final = 3
"""Laws that stand in the way and are told."""


class Nearly(NamedTuple):
    """A division, the laws that it breaks, and how it is called."""

    sizes: Sizes
    broken: tuple[Broken, ...]

    @property
    def words(self) -> str:
        """Its name and what is wrong with it: "tp2dp4 (tensor=2 does not divide the ffn width 13)"."""
        sizes = self.sizes
        named = axes(
            tensor=sizes.tensor or 1,
            pipeline=sizes.pipeline or 1,
            context=sizes.context or 1,
            expert=sizes.expert or 1,
            data=sizes.data or 1,
        )
        return f"{named} ({'; '.join(one.why for one in self.broken)})"


def nearly(space: Space) -> tuple[Nearly, ...]:
    """Of the divisions that break fewest laws one for each law, what divides the model least first."""
    judged = [Nearly(sizes, tuple(_faults(sizes, space))) for sizes in islice(_divisions(space), MOST_JUDGED)]
    wrong = [one for one in judged if one.broken]
    least = min((len(one.broken) for one in wrong), default=0)
    found: dict[str, Nearly] = {}
    for one in sorted((one for one in wrong if len(one.broken) == least), key=_divided):
        found.setdefault(re.sub(r"\d+", "", " ".join(fault.why for fault in one.broken)), one)
    return tuple(found.values())[:MOST_NAMED]


def _divided(one: Nearly) -> int:
    sizes = one.sizes
    return (sizes.tensor or 1) * (sizes.context or 1) * (sizes.pipeline or 1)


def _divisions(space: Space) -> Iterator[Sizes]:
    """All ways to divide the ranks as far as pins and open axes allow, in micro-batches as small as may be."""
    for tensor in _options(space, "tensor", space.world):
        for context in _options(space, "context", space.world // tensor):
            for pipeline in _options(space, "pipeline", space.world // (tensor * context)):
                data = space.world // (tensor * context * pipeline)
                if data in space.options("data", (data,)):
                    yield _sizes(space, tensor, context, pipeline, data)


def _options(space: Space, name: str, ranks: int) -> tuple[int, ...]:
    return tuple(size for size in space.options(name, divisors(ranks)[::-1]) if ranks % size == 0)


def _sizes(space: Space, tensor: int, context: int, pipeline: int, data: int) -> Sizes:
    micro, schedule = space.options("microBatch", (1,))[0], space.pins.get("schedule")
    virtual = space.pins.get("virtualStages") or (fewest_chunks(schedule) if pipeline > 1 else 1)
    length, share = space.training.sequence_length, data * micro
    sequence = tensor > 1 and (length or 1) % (tensor * context) == 0
    return Sizes(
        model=space.model if space.shaped else None,
        sequence_length=length,
        devices=space.world,
        global_batch=space.global_batch if space.managed else None,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        data=data,
        expert=space.options("expert", (1,))[0],
        expert_tensor=1,
        virtual=virtual,
        sequence=space.options("sequence", (sequence,))[0],
        stage_layers=tuple(space.pins.get("stageLayers", ())),
        micro_batch=micro,
        micro_batches=space.global_batch // share if space.global_batch % share == 0 else None,
        schedule=schedule,
    )


def _faults(sizes: Sizes, space: Space) -> Iterator[Broken]:
    island = None if "tensor" in space.pins else space.island
    yield from faults(sizes, island, space.per_pod)
    length, context = sizes.sequence_length, sizes.context or 1
    if context > 1 and "context" not in space.pins and length is not None and length < LEAST_TOKENS * context:
        why = f"context={context} leaves a rank less than {LEAST_TOKENS} of {length} tokens"
        yield Broken("context", context, why)
