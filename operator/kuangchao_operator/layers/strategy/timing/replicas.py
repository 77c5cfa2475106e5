"""What ranks with the same parameters owe each other: gradients, parameters under sharding, and the update. Pure.

Without sharding gradients are all-reduced; with sharded optimizer states they are reduce-scattered and updated
parameters gathered, which moves the same bytes (Rajbhandari et al. 2020). With sharded gradients every micro-batch
reduces; with sharded parameters every micro-batch gathers twice besides. Hybrid sharding gathers within a group of
`shard_ranks` and all-reduces the pieces over the groups.
"""

from functools import lru_cache
from typing import NamedTuple

from kuangchao_contracts.plan import Precision, Sharding, TransformerModel
from kuangchao_operator.layers.strategy.footprint import parameters as count
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.parameters import Share
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.timing import collectives
from kuangchao_operator.layers.strategy.timing.adding import added
from kuangchao_operator.layers.strategy.timing.clock import Clock
from kuangchao_operator.layers.strategy.timing.layer import LayerTime
from kuangchao_operator.layers.strategy.timing.machine import Reach
from kuangchao_operator.layers.strategy.timing.stage import Counts


class Transfers(NamedTuple):
    """Seconds of each exchange of a stage, all of it; `reduce` is over ranks with the same shard."""

    gather: float
    gather_updated: float
    scatter: float
    reduce: float
    optimizer: float


class _Rank(NamedTuple):
    """Parameters of a stage on one rank, by the ranks that hold the same ones."""

    dense: float
    experts: float


def owed(setting: Setting, counts: Counts, time: LayerTime, clock: Clock) -> tuple[float, float]:
    """Seconds of a step of the stage that runs `counts` in `time` for each micro-batch: exchanges as far as nothing
    hides them, and the update."""
    moves = _transfers(
        setting.model, counts, setting.layout, setting.sharding, setting.backend, setting.precision, clock
    )
    software = clock.hardware.software_of(setting.backend)
    forward, backward = time.forward.total, time.backward.total + time.weight
    if setting.sharding is Sharding.FULL:
        share = software.gather_overlap_permille / 1000
        # a pipeline keeps parameters whole between its micro-batches
        times = setting.micro_batches if setting.layout.pipeline == 1 else 1
        each = collectives.exposed(moves.gather, share, forward) + collectives.exposed(
            moves.gather + moves.scatter, share, backward
        )
        return times * each + moves.reduce, moves.optimizer
    share = software.data_overlap_permille / 1000
    reduced_each = setting.sharding is Sharding.GRADIENTS and setting.layout.pipeline == 1
    times = setting.micro_batches if reduced_each else 1
    exposed = times * collectives.exposed(moves.scatter, share, backward) + collectives.exposed(
        moves.gather_updated, share, forward
    )
    return exposed + moves.reduce, moves.optimizer


@lru_cache(maxsize=8192)
def _transfers(
    model: TransformerModel,
    counts: Counts,
    layout: Layout,
    sharding: Sharding,
    backend: str,
    precision: Precision,
    clock: Clock,
) -> Transfers:
    software, shares = clock.hardware.software_of(backend), _shares(model)
    held, trained = _on_rank(shares.held, counts, layout), _on_rank(shares.trained, _without_frozen(counts), layout)
    groups, layers = _groups(layout, clock, software.partial_permille), max(1, sum(counts[:4]))
    element = 4 if precision is Precision.FP32 else 2
    # without sharding the second half of the all-reduce gathers gradients, not parameters
    updated = software.gradient_bytes if sharding is Sharding.NONE else element
    pieces = [1 if sharding is Sharding.NONE else shards.size for shards, _ in groups]
    mine = added(each / piece for each, piece in zip(trained, pieces, strict=True))
    return Transfers(
        gather=_scattered(held, element, groups, layers, clock),
        gather_updated=_scattered(trained, updated, groups, layers, clock),
        scatter=_scattered(trained, software.gradient_bytes, groups, layers, clock),
        reduce=added(
            collectives.all_reduce(each * software.gradient_bytes / shards.size, copies, clock.start)
            for each, (shards, copies) in zip(trained, groups, strict=True)
            if each
        ),
        optimizer=clock.moved(mine * software.update_bytes) + software.step_us / 1e6,
    )


def _scattered(rank: _Rank, size: int, groups: tuple[tuple[Reach, Reach], ...], layers: int, clock: Clock) -> float:
    """One gather or scatter of the parameters of a rank, `size` bytes each, layer by layer."""
    return added(
        layers * collectives.scatter(each * size / layers, shards, clock.start)
        for each, (shards, _) in zip(rank, groups, strict=True)
        if each
    )


def _groups(layout: Layout, clock: Clock, partial: int) -> tuple[tuple[Reach, Reach], ...]:
    """For dense parameters and for experts: the ranks that shard a state, and those that hold the same shard."""

    def reach(size: int, stride: int) -> Reach:
        found = clock.links.reach(size, stride)
        if stride == 1 or found.local == 1:
            return found
        return found._replace(far=found.far * partial / 1000)

    same = layout.data * layout.context
    shards = layout.dense_shards
    dense = (reach(shards, layout.tensor), reach(same // shards, layout.tensor * shards))
    ranks, alike = layout.expert_ranks, max(1, layout.tensor * same // layout.expert_ranks)
    pieces = min(alike, layout.expert_shards)
    return dense, (reach(pieces, ranks), reach(alike // pieces, ranks * pieces))


class _Held(NamedTuple):
    dense: Share
    moe: Share
    embedding: int
    head: int


class _Shares(NamedTuple):
    held: _Held
    trained: _Held


def _without_frozen(counts: Counts) -> Counts:
    return counts._replace(frozen_dense=0, frozen_moe=0)


def _on_rank(each: _Held, counts: Counts, layout: Layout) -> _Rank:
    dense, moe = counts.dense + counts.frozen_dense, counts.moe + counts.frozen_moe
    sharded = dense * each.dense.sharded + moe * each.moe.sharded
    sharded += counts.embedding * each.embedding + counts.head * each.head
    whole = dense * each.dense.replicated + moe * each.moe.replicated
    return _Rank(sharded / layout.tensor + whole, (moe * each.moe.expert) / layout.expert_ranks)


@lru_cache(maxsize=256)
def _shares(model: TransformerModel) -> _Shares:
    held = [count.layer(model, moe=moe).plus(count.adapters(model, moe=moe)) for moe in (False, True)]
    trained = [count.trainable_layer(model, moe=moe) for moe in (False, True)]
    embedding, head = count.embedding(model, model.vocab).total, count.head(model, model.vocab).total
    return _Shares(
        _Held(held[0], held[1], embedding, head),
        _Held(
            trained[0],
            trained[1],
            embedding if count.trains_embedding(model) else 0,
            head if count.trains_head(model) else 0,
        ),
    )
