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
from kuangchao_operator.layers.strategy.timing.clock import Clock
from kuangchao_operator.layers.strategy.timing.hardware import Software
from kuangchao_operator.layers.strategy.timing.layer import LayerTime
from kuangchao_operator.layers.strategy.timing.machine import Reach
from kuangchao_operator.layers.strategy.timing.stage import Counts


class Owed(NamedTuple):
    """Seconds of a step that nothing hides."""

    data: float
    optimizer: float


class _Rank(NamedTuple):
    """Parameters of a stage on one rank."""

    dense: float
    experts: float


class _Groups(NamedTuple):
    """Links of the ranks that shard a state, and of those that hold the same shard, for one kind of parameters."""

    shards: Reach
    copies: Reach


def owed(setting: Setting, counts: Counts, time: LayerTime, clock: Clock) -> Owed:
    """Of the stage that runs `counts` in `time` for each micro-batch."""
    software = clock.hardware.software_of(setting.backend)
    held, trained = _on_rank(setting, counts, all_of=True), _on_rank(setting, counts, all_of=False)
    layers = max(1, sum(counts[:4]))
    dense, experts = _groups(setting.layout, clock)
    exchange = _full if setting.sharding is Sharding.FULL else _plain
    data = exchange(_Exchange(setting, software, time, clock, layers, held, trained), (dense, experts))
    shards = 1 if setting.sharding is Sharding.NONE else setting.layout.dense_shards
    expert_shards = 1 if setting.sharding is Sharding.NONE else setting.layout.expert_shards
    updated = trained.dense / shards + trained.experts / expert_shards
    return Owed(data, clock.moved(updated * software.update_bytes) + software.step_us / 1e6)


class _Exchange(NamedTuple):
    setting: Setting
    software: Software
    time: LayerTime
    clock: Clock
    layers: int
    held: _Rank
    trained: _Rank

    def scattered(self, groups: tuple[_Groups, _Groups], rank: _Rank, size: int) -> float:
        """One gather or scatter of the parameters of a rank, `size` bytes each, layer by layer."""
        each = ((g.shards, p * size / self.layers) for g, p in zip(groups, rank, strict=True) if p)
        return sum(self.layers * collectives.scatter(part, links, self.clock.start) for links, part in each)

    def reduced(self, groups: tuple[_Groups, _Groups], rank: _Rank, size: int) -> float:
        """The all-reduce over ranks with the same shard."""
        each = ((g.copies, p * size / g.shards.size) for g, p in zip(groups, rank, strict=True) if p)
        return sum(collectives.all_reduce(part, links, self.clock.start) for links, part in each)


def _plain(it: _Exchange, groups: tuple[_Groups, _Groups]) -> float:
    trained, setting, software = it.trained, it.setting, it.software
    scatter = it.scattered(groups, trained, software.gradient_bytes)
    times = setting.micro_batches if setting.sharding is Sharding.GRADIENTS else 1
    gather = it.scattered(groups, trained, _element(setting))
    if setting.sharding is Sharding.NONE:
        gather = it.scattered(groups, trained, software.gradient_bytes)
    hidden = software.data_overlap_permille / 1000
    backward = it.time.backward.total + it.time.weight
    exposed = times * _above(scatter, hidden * backward) + _above(gather, hidden * it.time.forward.total)
    return exposed + it.reduced(groups, trained, software.gradient_bytes)


def _full(it: _Exchange, groups: tuple[_Groups, _Groups]) -> float:
    trained, setting, software = it.trained, it.setting, it.software
    gather = it.scattered(groups, it.held, _element(setting))
    scatter = it.scattered(groups, trained, software.gradient_bytes)
    hidden = software.gather_overlap_permille / 1000
    backward = it.time.backward.total + it.time.weight
    each = _above(gather, hidden * it.time.forward.total) + _above(gather + scatter, hidden * backward)
    # a pipeline keeps parameters whole between its micro-batches
    times = setting.micro_batches if setting.layout.pipeline == 1 else 1
    return times * each + it.reduced(groups, trained, software.gradient_bytes)


def _groups(layout: Layout, clock: Clock) -> tuple[_Groups, _Groups]:
    """Of dense parameters, and of experts."""
    reach, shards = clock.links.reach, layout.dense_shards
    dense = _Groups(reach(shards, layout.tensor), reach(layout.data * layout.context // shards, layout.tensor * shards))
    same = max(1, layout.tensor * layout.data * layout.context // layout.expert_ranks)
    pieces = min(same, layout.expert_shards)
    return dense, _Groups(reach(pieces, layout.expert_ranks), reach(same // pieces, layout.expert_ranks * pieces))


def _on_rank(setting: Setting, counts: Counts, *, all_of: bool) -> _Rank:
    shares = _shares(setting.model)
    layout = setting.layout
    dense = counts.dense + (counts.frozen_dense if all_of else 0)
    moe = counts.moe + (counts.frozen_moe if all_of else 0)
    held = shares.held if all_of else shares.trained
    sharded = dense * held.dense.sharded + moe * held.moe.sharded
    sharded += counts.embedding * held.embedding + counts.head * held.head
    whole = dense * held.dense.replicated + moe * held.moe.replicated
    return _Rank(sharded / layout.tensor + whole, (moe * held.moe.expert) / layout.expert_ranks)


class _Held(NamedTuple):
    dense: Share
    moe: Share
    embedding: int
    head: int


class _Shares(NamedTuple):
    held: _Held
    trained: _Held


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


def _element(setting: Setting) -> int:
    return 4 if setting.precision is Precision.FP32 else 2


def _above(time: float, hidden: float) -> float:
    return time - hidden if time > hidden else 0.0
