"""Laws of division: what must come out even when a model, a batch and the ranks are divided. Pure.

Each was seen as a crash or as a silently different model somewhere. The vocabulary has no law: frameworks pad it to a
multiple of the tensor size.
"""

from collections.abc import Iterator
from itertools import accumulate
from math import prod
from operator import mul

from kuangchao_operator.layers.strategy.sizes import Broken, Sizes


def world(sizes: Sizes) -> Broken | None:
    """The axes of the mesh make up all devices. Experts are spread over ranks that the mesh has already counted."""
    axes = [("tensor", sizes.tensor), ("context", sizes.context), ("pipeline", sizes.pipeline), ("data", sizes.data)]
    known = {name: size for name, size in axes if size is not None}
    product, devices = prod(known.values()), sizes.devices
    if devices is None or (devices == product if len(known) == len(axes) else devices % product == 0):
        return None
    large, asked = [name for name in known if known[name] > 1], _product(known)
    if devices % (product // known.get("data", 1)) == 0 and "data" in known:
        whole = "must be the number of devices" if len(known) == len(axes) else "must divide the number of devices"
        why = f"data={known['data']} contradicts devices={devices}: {asked} {whole}"
        return Broken("data", known["data"], why, (*large, "devices"), listed=True)
    field = next((name for name, size in _running(known) if devices % size), large[-1] if large else "data")
    if len(large) == 1:
        return divides(field, known[field], devices, f"{devices} devices", ("devices",))
    others = _product({name: known[name] for name in large if name != field})
    why = f"{field}={known[field]} x {others} does not divide {devices} devices"
    return Broken(field, known[field], why, (*(name for name in large if name != field), "devices"), listed=True)


def _product(sizes: dict[str, int]) -> str:
    return " x ".join(f"{name} {size}" for name, size in sizes.items())


def _running(sizes: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Each axis with the product of all up to it."""
    return zip(sizes, accumulate(sizes.values(), mul), strict=True)


def heads(sizes: Sizes) -> Broken | None:
    """Tensor parallelism gives each rank whole attention heads."""
    if sizes.model is None or sizes.tensor is None:
        return None
    return divides("tensor", sizes.tensor, sizes.model.heads, f"{sizes.model.heads} heads")


def kv_heads(sizes: Sizes) -> Broken | None:
    """Grouped queries: each rank has whole key-value heads too; latent attention has none of its own."""
    model = sizes.model
    if model is None or sizes.tensor is None or model.latent_attention is not None or model.kv_heads is None:
        return None
    return divides("tensor", sizes.tensor, model.kv_heads, f"{model.kv_heads} key-value heads")


def ffn(sizes: Sizes) -> Broken | None:
    """Tensor parallelism divides the inner width of the ffn, and that of shared experts."""
    if sizes.model is None or sizes.tensor is None:
        return None
    shared = sizes.model.experts.shared_ffn if sizes.model.experts is not None else 0
    for width, what in ((sizes.model.ffn, "ffn width"), (shared, "shared experts' width")):
        found = divides("tensor", sizes.tensor, width, f"the {what} {width}") if width else None
        if found is not None:
            return found
    return None


def experts(sizes: Sizes) -> Broken | None:
    """Each rank of an expert group has as many experts, and each of them as much of every expert."""
    model, expert, within = sizes.model, sizes.expert, sizes.expert_tensor
    if model is None:
        return None
    if model.experts is None:
        if (expert or 1) == 1:
            return None
        return Broken("expert", expert or 1, f"expert={expert}: the model has no experts")
    found = divides("expert", expert, model.experts.count, f"{model.experts.count} experts") if expert else None
    if found is None and within is not None:
        return divides("expertTensor", within, model.experts.ffn, f"the experts' width {model.experts.ffn}")
    return found


def expert_ranks(sizes: Sizes) -> Broken | None:
    """Experts are spread over the ranks of a pipeline stage, whatever those are on other axes."""
    ranks, within = sizes.stage_ranks or sizes.devices, sizes.expert_tensor or 1
    if ranks is None or sizes.expert is None or ranks % (sizes.expert * within) == 0:
        return None
    of = f"the {ranks} ranks of a pipeline stage" if sizes.stage_ranks is not None else f"{ranks} devices"
    if ranks % within:
        return divides("expertTensor", within, ranks, of)
    times = f" x expert tensor {within}" if within > 1 else ""
    why = f"expert={sizes.expert}{times} does not divide {of}"
    return Broken("expert", sizes.expert, why, ("pipeline", "devices"), listed=True)


def sequence(sizes: Sizes) -> Broken | None:
    """Sequence parallelism divides what a context rank has of a sequence over the tensor ranks, which it needs."""
    if not sizes.sequence or sizes.tensor is None:
        return None
    if sizes.tensor == 1:
        return Broken("sequence", True, "sequence=true divides over tensor ranks and tensor=1", ("tensor",))
    length, context = sizes.sequence_length, sizes.context or 1
    if length is None or length % (sizes.tensor * context) == 0:
        return None
    of = f" over context {context}" if context > 1 else ""
    why = f"tensor={sizes.tensor} does not divide sequence length {length}{of} (sequence parallelism)"
    return Broken("tensor", sizes.tensor, why, ("context", "sequence"), listed=True)


def context(sizes: Sizes) -> Broken | None:
    """Context ranks take one piece from the front and one from the back each, so that causal attention is balanced."""
    length, count = sizes.sequence_length, sizes.context
    if length is None or count is None or count == 1 or length % (2 * count) == 0:
        return None
    why = f"context={count} cuts sequence length {length} into {2 * count} unequal pieces"
    return Broken("context", count, why, listed=True)


def shards(sizes: Sizes) -> Broken | None:
    """Hybrid sharding cuts the ranks that hold the same parameters into equal groups."""
    if not sizes.shard_ranks or sizes.data is None:
        return None
    ranks = sizes.data * (sizes.context or 1)
    return divides("shardRanks", sizes.shard_ranks, ranks, f"the {ranks} ranks of data x context")


def batch(sizes: Sizes) -> Broken | None:
    """The global batch is whole micro-batches on every data-parallel rank; it is never changed."""
    whole, data, micro = sizes.global_batch, sizes.data, sizes.micro_batch
    if whole is None or whole % ((data or 1) * (micro or 1)) == 0:
        return None
    if data is not None and whole % data:
        why = f"globalBatch={whole} cannot be split evenly over {data} data-parallel ranks"
        return Broken("globalBatch", whole, f"{why}, and the batch is never changed silently", ("devices", "data"))
    over = f"{data} ranks x " if data is not None else "data x "
    why = (
        f"microBatch={micro} contradicts globalBatch={whole}: microBatch x {over}accumulation steps must be globalBatch"
    )
    return Broken("microBatch", micro or 1, why, ("globalBatch",))


def divides(field: str, size: int, whole: int, what: str, instead: tuple[str, ...] = ()) -> Broken | None:
    """The law that a size divides a whole."""
    if whole % size == 0:
        return None
    return Broken(field, size, f"{field}={size} does not divide {what}", instead, listed=True)


LAWS = (world, heads, kv_heads, ffn, experts, expert_ranks, sequence, context, shards, batch)
"""In the order in which a person would want to hear of them."""
