"""What the parameters of a stage cost on one rank: themselves, gradients, main copies and optimizer states. Pure.

Sharding divides them over the ranks that hold the same ones, or over a group of those: optimizer states first, then
gradients, then parameters (ZeRO stages 1, 2 and 3). Ranks that hold the same experts are fewer than those that hold the
same dense parameters.
"""

from typing import NamedTuple

from kuangchao_contracts.plan import Sharding
from kuangchao_operator.layers.strategy.footprint.calibration import Calibration, StateCost
from kuangchao_operator.layers.strategy.footprint.parameters import Share
from kuangchao_operator.layers.strategy.footprint.setting import Offload, Setting

SHARDS_GRADIENTS = (Sharding.GRADIENTS, Sharding.FULL)


class Rank(NamedTuple):
    """Parameters on one rank before sharding."""

    dense: int
    experts: int

    @property
    def total(self) -> int:
        """Both."""
        return self.dense + self.experts


class StateMemory(NamedTuple):
    """Bytes on one rank."""

    parameters: int
    gradients: int
    optimizer: int
    """Main copies and states."""
    casts: int
    first_step: int
    """Of `optimizer`, what is there before the first step: states come with it."""
    updated: int
    """Parameters, not bytes: those that this rank updates."""


def on_rank(share: Share, setting: Setting) -> Rank:
    """What tensor and expert parallelism leave on a rank."""
    held = share.per_rank(setting.layout.tensor, setting.layout.expert_ranks)
    return Rank(dense=held.sharded + held.replicated, experts=held.expert)


def state_memory(held: Share, trained: Share, setting: Setting, calibration: Calibration) -> StateMemory:
    """The states of a stage that holds `held`, of which `trained` have gradients."""
    backend = calibration.backends[setting.backend]
    cost = backend.states[setting.precision]
    states = calibration.optimizer_bytes[setting.optimizer] * cost.state_permille
    whole, train = on_rank(held, setting), on_rank(trained, setting)
    if setting.offload is not Offload.NONE:
        train = Rank(0, 0)
    main = divided(train, cost.main, setting, shard=setting.sharding is not Sharding.NONE)
    return StateMemory(
        parameters=divided(whole, parameter_cost(cost, setting), setting, shard=setting.sharding is Sharding.FULL),
        gradients=divided(train, gradient_cost(cost, setting), setting, shard=setting.sharding in SHARDS_GRADIENTS),
        optimizer=main + divided(train, states, setting, shard=setting.sharding is not Sharding.NONE, permille=True),
        casts=divided(whole, cost.cast, setting, shard=setting.sharding is Sharding.FULL),
        first_step=main,
        updated=divided(train, 1, setting, shard=setting.sharding is not Sharding.NONE),
    )


def divided(rank: Rank, each: int, setting: Setting, *, shard: bool, permille: bool = False) -> int:
    """Bytes of `each` for every parameter, over the ranks that hold the same ones if `shard`."""
    unit = 1000 if permille else 1
    if not shard:
        return -(-rank.total * each // unit)
    dense = -(-rank.dense * each // (unit * setting.layout.dense_shards))
    return dense + -(-rank.experts * each // (unit * setting.layout.expert_shards))


def parameter_cost(cost: StateCost, setting: Setting) -> int:
    """Bytes of a parameter on the device: none where parameters stand in main memory."""
    return 0 if setting.offload is Offload.PARAMETERS else cost.parameter


def gradient_cost(cost: StateCost, setting: Setting) -> int:
    """Bytes of a gradient on the device, apart from those that come and go."""
    if setting.sharding is Sharding.FULL and cost.full_gradient is not None:
        return cost.full_gradient
    return cost.gradient
