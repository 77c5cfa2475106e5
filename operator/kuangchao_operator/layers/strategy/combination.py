"""Laws of combination: layouts that can be cut but hang, fail or waste what they cost when they run. Pure.

They hold for plans of ours. Published runs of other frameworks may break them and are costed all the same.
"""

from kuangchao_contracts.plan import Sharding
from kuangchao_operator.layers.strategy.sizes import Broken, Sizes


def filled_pipeline(sizes: Sizes) -> Broken | None:
    """With fewer micro-batches than stages some stage always waits, and some schedules wait for ever."""
    most, pipeline = sizes.most_micro_batches, sizes.pipeline
    if most is None or pipeline is None or pipeline == 1 or most >= pipeline:
        return None
    over = f" over data {sizes.data}" if sizes.data is not None else ""
    batch = f" of globalBatch {sizes.global_batch}{over}" if sizes.global_batch is not None else ""
    why = f"pipeline={pipeline} has more stages than there are micro-batches: {most}{batch}"
    return Broken("pipeline", pipeline, why, ("microBatch", "globalBatch", "accumulationSteps"))


def experts_with_tensor(sizes: Sizes) -> Broken | None:
    """Without sequence parallelism all tensor ranks would send the same tokens to the experts."""
    if (sizes.expert or 1) == 1 or (sizes.tensor or 1) == 1 or sizes.sequence is not False:
        return None
    why = (
        f"sequence=false with expert={sizes.expert} and tensor={sizes.tensor} has every tensor rank send the same"
        " tokens to the experts"
    )
    return Broken("sequence", False, why, ("expert", "tensor"))


def sharded_groups(sizes: Sizes) -> Broken | None:
    """A size of shard groups says something only where states are sharded."""
    if not sizes.shard_ranks or sizes.sharding is not Sharding.NONE:
        return None
    why = f"shardRanks={sizes.shard_ranks} and sharding none contradict each other"
    return Broken("shardRanks", sizes.shard_ranks, why)


def island(sizes: Sizes, width: int, per_pod: int) -> Broken | None:
    """Tensor ranks share an island of fast links, whole groups in each, and no group begins inside of a pod.

    Only a pin may say otherwise.
    """
    tensor = sizes.tensor
    if tensor is None or whole_groups(tensor, width, per_pod):
        return None
    islands = f"islands of {width} devices that share fast links, in pods of {per_pod}"
    return Broken("tensor", tensor, f"tensor={tensor} does not fit whole into {islands}")


def whole_groups(tensor: int, width: int, per_pod: int) -> bool:
    """Whether tensor groups fill islands of `width` devices, and pods of `per_pod`, or are filled by pods, whole."""
    return tensor == 1 or (width % tensor == 0 and (per_pod % tensor == 0 or tensor % per_pod == 0))


LAWS = (filled_pipeline, experts_with_tensor, sharded_groups)
"""In the order in which a person would want to hear of them."""
