"""Laws of combination: layouts that can be cut but hang, fail or waste what they cost when they run. Pure.

They hold for plans of ours. Published runs of other frameworks may break them and are costed all the same.
"""

from kuangchao_contracts.plan import Sharding
from kuangchao_operator.layers.strategy import division, staging
from kuangchao_operator.layers.strategy.numbers import divisors
from kuangchao_operator.layers.strategy.sizes import Contradiction, Sizes


def filled_pipeline(sizes: Sizes) -> Contradiction | None:
    """With fewer micro-batches than stages some stage always waits, and some schedules wait for ever."""
    most, pipeline = sizes.most_micro_batches, sizes.pipeline
    if most is None or pipeline is None or pipeline == 1 or most >= pipeline:
        return None
    batch = f" of globalBatch {sizes.global_batch} over data {sizes.data}" if sizes.global_batch is not None else ""
    why = f"pipeline={pipeline} has more stages than there are micro-batches: {most}{batch}"
    shorter = _shorter(sizes, pipeline, most)
    if shorter is not None:
        return Contradiction("pipeline", pipeline, str(shorter), f"{why}; nearest legal pipeline: {shorter}")
    if sizes.global_batch is None:
        return Contradiction("microBatches", most, str(pipeline), f"{why}; nearest legal number: {pipeline}")
    least = pipeline * (sizes.data or 1) * (sizes.micro_batch or 1)
    message = f"{why}, and no shorter one keeps the laws; nearest legal globalBatch: {least}"
    return Contradiction("globalBatch", sizes.global_batch, str(least), message)


def _shorter(sizes: Sizes, pipeline: int, most: int) -> int | None:
    """The longest pipeline that so many micro-batches fill and that keeps the laws, all else being as it is.

    Where tensor and context are given there is none: more data ranks would have fewer micro-batches each.
    """
    laws = (*division.LAWS, *staging.LAWS)
    shorter = (size for size in divisors(sizes.devices or pipeline) if size < pipeline and size <= max(1, most))
    return next((n for n in shorter if all(law(sizes._replace(pipeline=n)) is None for law in laws)), None)


def experts_with_tensor(sizes: Sizes) -> Contradiction | None:
    """Without sequence parallelism all tensor ranks would send the same tokens to the experts."""
    if (sizes.expert or 1) == 1 or (sizes.tensor or 1) == 1 or sizes.sequence is not False:
        return None
    message = (
        f"sequence=false with expert={sizes.expert} and tensor={sizes.tensor} has every tensor rank send the same"
        " tokens to the experts; nearest legal sequence: true"
    )
    return Contradiction("sequence", "false", "true", message)


def sharded_groups(sizes: Sizes) -> Contradiction | None:
    """A size of shard groups says something only where states are sharded."""
    if not sizes.shard_ranks or sizes.sharding is not Sharding.NONE:
        return None
    message = f"shardRanks={sizes.shard_ranks} and sharding none contradict each other; nearest legal shardRanks: 0"
    return Contradiction("shardRanks", sizes.shard_ranks, "0", message)


def island(sizes: Sizes, width: int, per_pod: int) -> Contradiction | None:
    """Tensor ranks share an island of fast links, whole groups in each, and no group begins inside of a pod.

    Only a pin may say otherwise.
    """
    tensor = sizes.tensor
    if tensor is None or whole_groups(tensor, width, per_pod):
        return None
    nearest = next(size for size in divisors(width) if size < tensor and whole_groups(size, width, per_pod))
    return Contradiction(
        "tensor",
        tensor,
        str(nearest),
        f"tensor={tensor} does not fit whole into islands of {width} devices that share fast links, in pods of"
        f" {per_pod}; nearest legal tensor: {nearest}",
    )


def whole_groups(tensor: int, width: int, per_pod: int) -> bool:
    """Whether tensor groups fill islands of `width` devices, and pods of `per_pod`, or are filled by pods, whole."""
    return tensor == 1 or (width % tensor == 0 and (per_pod % tensor == 0 or tensor % per_pod == 0))


LAWS = (filled_pipeline, experts_with_tensor, sharded_groups)
"""In the order in which a person would want to hear of them."""
