"""Which ranks should stand together, from a plan's layout and the shape of its nodes: hints, as rules. Pure.

It places nothing: execution turns what is required into runs of pods on one node, and the rest is for whoever can
choose among nodes. Ranks are numbered pod after pod and node after node.
"""

from collections.abc import Iterator
from math import lcm

from kuangchao_contracts.parallel import Locality, PlacementRule
from kuangchao_contracts.plan import DeviceShape
from kuangchao_operator.layers.strategy.footprint.layout import Layout


def island_of(shape: DeviceShape) -> int:
    """Devices that share fast links: those of a node, where nothing is known of islands."""
    return shape.fabric.island if shape.fabric is not None and shape.fabric.island > 1 else shape.per_node


def filled_island(shape: DeviceShape, per_pod: int) -> int:
    """Devices of an island that whole pods can fill. Pods may straddle the islands of a node, never two nodes, so only
    where the node is the island is what they leave over no part of it.
    """
    island = island_of(shape)
    return island if island != shape.per_node else (island - island % per_pod) or island


def rules(layout: Layout, shape: DeviceShape, per_pod: int) -> tuple[PlacementRule, ...]:
    """The rules of a layout in pods of `per_pod` devices, on nodes of a shape; the strictest first."""
    return (*_together(layout, shape, per_pod), *_rails(layout, shape))


def _together(layout: Layout, shape: DeviceShape, per_pod: int) -> Iterator[PlacementRule]:
    """Groups that talk in every layer: tensor ranks must, the others should, stand where links are fast.

    Tensor ranks need not where nodes have no room for it: only a pin makes such a plan, and it would wait for ever.
    """
    tensor, island = layout.tensor, island_of(shape)
    if 1 < tensor <= shape.per_node:
        within = Locality.ISLAND if tensor <= island else Locality.NODE
        room = _have_room(layout, shape, per_pod)
        yield _rule(within, tensor, 1, "tensor ranks exchange every layer's activations", required=room)
    wishes = (
        (layout.context, tensor, "context ranks pass keys and values round"),
        (layout.expert, layout.expert_tensor, "expert ranks exchange tokens in every layer with experts"),
        (layout.shard_ranks, tensor, "the shards of a layer are gathered before each use"),
    )
    for size, stride, why in wishes:
        if size > 1 and size * stride <= shape.per_node:
            within = Locality.ISLAND if size * stride <= island else Locality.NODE
            yield _rule(within, size, stride, why, required=False)


def _have_room(layout: Layout, shape: DeviceShape, per_pod: int) -> bool:
    """Whether nodes can hold a job in runs of whole pods that are whole tensor groups."""
    run = lcm(per_pod, layout.tensor)
    return shape.per_node % run == 0 or shape.nodes * (shape.per_node // run) * run >= layout.world


def _rails(layout: Layout, shape: DeviceShape) -> Iterator[PlacementRule]:
    """Ranks with one place on different nodes share a rail, where the network has rails and nodes are filled whole."""
    fabric, inner = shape.fabric, layout.tensor * layout.context
    if fabric is None or not fabric.rail_optimised or (fabric.nics or 1) == 1:
        return
    span, per_node = inner * layout.data, shape.per_node
    if span > per_node and span % per_node == 0:
        why = "gradients go between nodes along a rail"
        yield _rule(Locality.RAIL, span // per_node, per_node, why, required=False)
    if layout.pipeline > 1 and span % per_node == 0:
        why = "stages hand on along a rail"
        yield _rule(Locality.RAIL, layout.pipeline, span, why, required=False)


def _rule(within: Locality, size: int, stride: int, reason: str, *, required: bool) -> PlacementRule:
    return PlacementRule(within=within, size=size, stride=stride, required=required, reason=reason)
