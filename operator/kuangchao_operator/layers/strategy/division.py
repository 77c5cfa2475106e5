"""Laws of division: what must come out even when a model, a batch and the ranks are divided. Pure.

Each was seen as a crash or as a silently different model somewhere; each names the nearest legal value. The vocabulary
has no law: frameworks pad it to a multiple of the tensor size.
"""

from math import gcd, prod

from kuangchao_operator.layers.strategy.numbers import either, listed, nearest_divisors, nearest_multiples
from kuangchao_operator.layers.strategy.sizes import Contradiction, Sizes


def world(sizes: Sizes) -> Contradiction | None:
    """The axes of the mesh make up all devices. Experts are spread over ranks that the mesh has already counted."""
    axes = [("tensor", sizes.tensor), ("pipeline", sizes.pipeline), ("context", sizes.context), ("data", sizes.data)]
    known = {name: size for name, size in axes if size is not None}
    product, devices = prod(known.values()), sizes.devices
    if devices is None or (devices == product if len(known) == len(axes) else devices % product == 0):
        return None
    large = [(name, size) for name, size in known.items() if size > 1]
    if len(known) < len(axes) and len(large) == 1:
        return divides(*large[0], devices, f"{devices} devices")
    rest, asked = product // known.get("data", 1), " x ".join(f"{name} {size}" for name, size in known.items())
    if len(known) == len(axes) and devices % rest == 0:
        nearest = str(devices // rest)
        why = f"data={known['data']} contradicts devices={devices}: {asked} must be the number of devices"
        return Contradiction("data", known["data"], nearest, f"{why}; nearest legal data: {nearest}")
    nearest = either(nearest_multiples(devices, rest if len(known) == len(axes) else product))
    why = f"devices={devices} is not a multiple of {asked}"
    return Contradiction("devices", devices, nearest, f"{why}; nearest legal devices: {nearest}")


def heads(sizes: Sizes) -> Contradiction | None:
    """Tensor parallelism gives each rank whole attention heads."""
    if sizes.model is None or sizes.tensor is None:
        return None
    return divides("tensor", sizes.tensor, sizes.model.heads, f"{sizes.model.heads} heads")


def kv_heads(sizes: Sizes) -> Contradiction | None:
    """Grouped queries: each rank has whole key-value heads too; latent attention has none of its own."""
    model = sizes.model
    if model is None or sizes.tensor is None or model.latent_attention is not None or model.kv_heads is None:
        return None
    return divides("tensor", sizes.tensor, model.kv_heads, f"{model.kv_heads} key-value heads")


def ffn(sizes: Sizes) -> Contradiction | None:
    """Tensor parallelism divides the inner width of the ffn, and that of shared experts."""
    if sizes.model is None or sizes.tensor is None:
        return None
    shared = sizes.model.experts.shared_ffn if sizes.model.experts is not None else 0
    for width, what in ((sizes.model.ffn, "ffn width"), (shared, "shared experts' width")):
        found = divides("tensor", sizes.tensor, width, f"the {what} {width}") if width else None
        if found is not None:
            return found
    return None


def experts(sizes: Sizes) -> Contradiction | None:
    """Each rank of an expert group has as many experts, and each of them as much of every expert."""
    model, expert, within = sizes.model, sizes.expert, sizes.expert_tensor
    if model is None:
        return None
    if model.experts is None:
        if (expert or 1) == 1:
            return None
        return Contradiction("expert", expert or 1, "1", f"expert={expert}: the model has no experts; nearest legal: 1")
    found = divides("expert", expert, model.experts.count, f"{model.experts.count} experts") if expert else None
    if found is None and within is not None:
        return divides("expertTensor", within, model.experts.ffn, f"the experts' width {model.experts.ffn}")
    return found


def expert_ranks(sizes: Sizes) -> Contradiction | None:
    """Experts are spread over the ranks of a pipeline stage, whatever those are on other axes."""
    ranks, within = sizes.stage_ranks, sizes.expert_tensor or 1
    if ranks is None or sizes.expert is None or ranks % (sizes.expert * within) == 0:
        return None
    moe = sizes.model.experts if sizes.model is not None else None
    if ranks % within:
        whole = gcd(ranks, moe.ffn) if moe is not None else ranks
        return divides("expertTensor", within, whole, f"the {ranks} ranks of a pipeline stage")
    whole = gcd(ranks // within, moe.count) if moe is not None else ranks // within
    nearest = either(nearest_divisors(whole, sizes.expert))
    return Contradiction(
        "expert",
        sizes.expert,
        nearest,
        f"expert={sizes.expert} x expert tensor {within} does not divide the {ranks} ranks of a pipeline"
        f" stage; nearest legal expert: {nearest}",
    )


def sequence(sizes: Sizes) -> Contradiction | None:
    """Sequence parallelism divides what a context rank has of a sequence over the tensor ranks, which it needs."""
    if not sizes.sequence or sizes.tensor is None:
        return None
    if sizes.tensor == 1:
        message = "sequence=true divides over tensor ranks and tensor=1; nearest legal sequence: false"
        return Contradiction("sequence", "true", "false", message)
    length, context = sizes.sequence_length, sizes.context or 1
    if length is None or length % (sizes.tensor * context) == 0:
        return None
    of = f" over context {context}" if context > 1 else ""
    return divides(
        "tensor", sizes.tensor, max(1, length // context), f"sequence length {length}{of} (sequence parallelism)"
    )


def context(sizes: Sizes) -> Contradiction | None:
    """Context ranks take one piece from the front and one from the back each, so that causal attention is balanced."""
    length, count = sizes.sequence_length, sizes.context
    if length is None or count is None or count == 1 or length % (2 * count) == 0:
        return None
    nearest = either(nearest_divisors(length // 2, count)) if length % 2 == 0 else "1"
    return Contradiction(
        "context",
        count,
        nearest,
        f"context={count} cuts sequence length {length} into {2 * count} unequal pieces;"
        f" nearest legal context: {nearest}",
    )


def shards(sizes: Sizes) -> Contradiction | None:
    """Hybrid sharding cuts the ranks that hold the same parameters into equal groups."""
    if not sizes.shard_ranks or sizes.data is None:
        return None
    ranks = sizes.data * (sizes.context or 1)
    return divides("shardRanks", sizes.shard_ranks, ranks, f"the {ranks} ranks of data x context")


def batch(sizes: Sizes) -> Contradiction | None:
    """The global batch is whole micro-batches on every data-parallel rank; it is never changed."""
    whole, data, micro = sizes.global_batch, sizes.data, sizes.micro_batch
    if whole is None or whole % ((data or 1) * (micro or 1)) == 0:
        return None
    if data is not None and whole % data:
        others = sizes.devices // data if sizes.devices is not None else 1
        near = either(nearest_multiples(whole, data))
        fitting = either(size * others for size in nearest_divisors(whole, data))
        return Contradiction(
            "globalBatch",
            whole,
            near,
            f"globalBatch={whole} cannot be split evenly over {data} data-parallel ranks, and the batch is never"
            f" changed silently; nearest legal globalBatch: {near}; or devices: {fitting}",
        )
    share = whole // (data or 1)
    near = either(nearest_divisors(share, micro or 1))
    over = f"{data} ranks x " if data is not None else "data x "
    return Contradiction(
        "microBatch",
        micro or 1,
        near,
        f"microBatch={micro} contradicts globalBatch={whole}: microBatch x {over}accumulation steps must be"
        f" globalBatch; nearest legal microBatch: {near}",
    )


def divides(field: str, size: int, whole: int, what: str) -> Contradiction | None:
    """The law that a size divides a whole, with all sizes that would."""
    if whole % size == 0:
        return None
    nearest = either(nearest_divisors(whole, size))
    return Contradiction(
        field,
        size,
        nearest,
        f"{field}={size} does not divide {what}: it may be {listed(whole)}; nearest legal {field}: {nearest}",
    )


LAWS = (world, heads, kv_heads, ffn, experts, expert_ranks, sequence, context, shards, batch)
"""In the order in which a person would want to hear of them."""
