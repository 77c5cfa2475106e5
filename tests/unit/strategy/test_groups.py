"""Groups as rules: each rank in exactly one group of each kind, in the usual order; and which ranks stand together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts.fabric import Fabric
from kuangchao_contracts.parallel import Locality, Overlay
from kuangchao_contracts.plan import Axis, AxisGroups, DeviceShape
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.groups import members, mesh, overlays, uncovered
from kuangchao_operator.layers.strategy.placement import rules

EVERY = Layout(tensor=2, context=2, data=4, pipeline=2, expert=4, expert_tensor=2, shard_ranks=4)
NODE = DeviceShape(kind="gpu", model="H100", memory_bytes=80 * 2**30, per_node=8, nodes=4)
PAIRS = NODE.replace(fabric=Fabric(island=2))
RAILS = NODE.replace(fabric=Fabric(island=8, nics=8))

sizes = st.sampled_from([1, 2, 3, 4])
layouts = st.builds(Layout, tensor=sizes, context=sizes, data=sizes, pipeline=sizes)


@given(layout=layouts)
def test_every_rank_is_in_one_group_of_each_axis_and_no_two_ranks_have_the_same_coordinates(layout: Layout) -> None:
    groups = mesh(layout)
    for group in groups:
        seen = [
            rank for first in range(layout.world) for rank in members(first, group) if first == members(first, group)[0]
        ]
        assert sorted(seen) == list(range(layout.world))
        assert uncovered(group, layout.world) == 0
    places = {tuple(rank // g.stride % g.size for g in groups) for rank in range(layout.world)}
    assert len(places) == layout.world


def test_tensor_is_innermost_and_pipeline_outermost() -> None:
    assert [(group.axis, group.size, group.stride) for group in mesh(EVERY)] == [
        (Axis.TENSOR, 2, 1),
        (Axis.CONTEXT, 2, 2),
        (Axis.DATA, 4, 4),
        (Axis.PIPELINE, 2, 16),
    ]


def test_a_world_of_one_rank_has_a_mesh() -> None:
    assert mesh(Layout()) == (AxisGroups(axis=Axis.DATA, size=1, stride=1),)


def test_experts_lie_over_tensor_context_and_data_of_one_stage() -> None:
    found = {group.axis: group for group in overlays(EVERY, moe=True)}
    assert set(found) == {Overlay.EXPERT_TENSOR, Overlay.EXPERT, Overlay.EXPERT_DATA}
    assert list(members(16 + 5, found[Overlay.EXPERT])) == [17, 19, 21, 23]
    assert list(members(5, found[Overlay.EXPERT_DATA])) == [5, 13]
    assert all(uncovered(group, EVERY.world) == 0 for group in found.values())
    copies = {(r // 16, *(r // g.stride % g.size for g in found.values())) for r in range(EVERY.world)}
    assert len(copies) == EVERY.world, "stage and the three together name a rank"


def test_experts_that_nothing_divides_are_summed_over_tensor_ranks_too() -> None:
    whole = Layout(tensor=2, data=4)
    assert [(g.axis, g.size, g.stride) for g in overlays(whole, moe=True)] == [(Overlay.EXPERT_DATA, 8, 1)]
    assert overlays(whole) == ()


def test_hybrid_shards_cut_data_and_context_ranks_of_one_tensor_rank() -> None:
    layout = Layout(tensor=2, data=8, shard_ranks=4)
    shard, replica = overlays(layout, 4)
    assert list(members(1, shard)) == [1, 3, 5, 7]
    assert list(members(1, replica)) == [1, 9]
    assert overlays(layout, 8) == overlays(layout, 0) == ()


@pytest.mark.parametrize(
    ("layout", "shape", "expected"),
    [
        (Layout(data=32), NODE, []),
        (Layout(tensor=8, data=4), NODE, [(Locality.ISLAND, 8, 1, True)]),
        (Layout(tensor=4, data=8), PAIRS, [(Locality.NODE, 4, 1, True)]),
        (Layout(tensor=16, data=2), NODE, []),
        (Layout(tensor=2, context=4), NODE, [(Locality.ISLAND, 2, 1, True), (Locality.ISLAND, 4, 2, False)]),
        (Layout(data=32, expert=8), PAIRS, [(Locality.NODE, 8, 1, False)]),
        (Layout(data=32, shard_ranks=8), NODE, [(Locality.ISLAND, 8, 1, False)]),
        (Layout(data=32), RAILS, [(Locality.RAIL, 4, 8, False)]),
        (
            Layout(tensor=8, pipeline=4),
            RAILS,
            [(Locality.ISLAND, 8, 1, True), (Locality.RAIL, 4, 8, False)],
        ),
        (Layout(data=32), NODE.replace(fabric=Fabric(island=8, nics=8, rail_optimised=False)), []),
    ],
)
def test_who_must_and_who_should_stand_together(
    layout: Layout, shape: DeviceShape, expected: list[tuple[Locality, int, int, bool]]
) -> None:
    assert [(rule.within, rule.size, rule.stride, rule.required) for rule in rules(layout, shape, 1)] == expected


@pytest.mark.parametrize(("per_pod", "required"), [(1, True), (2, True), (4, True), (8, True), (3, False), (6, False)])
def test_tensor_ranks_must_stand_together_where_a_node_has_room_for_whole_pods_of_them(
    per_pod: int, required: bool
) -> None:
    """Two pods of six hold three groups of four, and no node of eight holds them."""
    found = rules(Layout(tensor=4, data=6), NODE, per_pod)
    assert [(rule.size, rule.required) for rule in found] == [(4, required)]


@pytest.mark.parametrize(("nodes", "required"), [(3, False), (4, True)])
def test_nor_must_they_where_runs_of_whole_groups_leave_too_much_of_each_node_free(nodes: int, required: bool) -> None:
    """Four groups of six need a node each, though three nodes have 24 devices."""
    (rule,) = rules(Layout(tensor=6, data=4), NODE.replace(nodes=nodes), 2)
    assert rule.required is required
