"""Tokens and experts in parts: which rank has which, and what is refused. Their results are tested on real links."""

from collections import UserDict
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.parallel import Overlay, OverlayGroups
from kuangchao_contracts.plan import Axis, AxisGroups, ParallelPlan, Sharding
from kuangchao_contracts.rules import ParallelRules, TensorStyle
from kuangchao_worker.layers.execution.data import Batches
from kuangchao_worker.layers.state.entries import Holders
from kuangchao_worker.layers.state.experts import check_experts, check_tokens, keep_own
from kuangchao_worker.layers.topology.decide import groups_of
from kuangchao_worker.parallel import mixture, positions
from kuangchao_worker.parallel.tokens import cut, pieces_of
from kuangchao_worker.rank.algorithm import _to_device
from kuangchao_worker.rank.runnable import require_runnable, whole
from kuangchao_worker.tasks.text import MOE_RULES, moe, transformer
from tests.local.training import split
from tests.unit.worker.fakegate import make_plan

TOKENS = torch.arange(24).view(2, 12)


class Named(NamedTuple):
    """A sample, and a batch as torch's own `default_collate` makes it of such samples."""

    ids: torch.Tensor
    label: Any


def over(context: int, data: int, **fields: Any) -> ParallelPlan:
    groups = (
        AxisGroups(axis=Axis.CONTEXT, size=context, stride=1),
        AxisGroups(axis=Axis.DATA, size=data, stride=context),
    )
    return make_plan(context * data, groups=groups, context=context, data=data, **fields)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_ranks_share_the_tokens_and_the_work_of_a_causal_attention(size: int) -> None:
    parts = [cut((TOKENS, "label"), {"0": 1}, rank, size) for rank in range(size)]
    assert torch.equal(torch.cat([own for own, _ in parts], dim=1).sort(dim=1).values, TOKENS)
    assert {label for _, label in parts} == {"label"}
    # a query at position p has p + 1 keys
    assert len({(own[0] + 1).sum().item() for own, _ in parts}) == 1
    assert sorted(piece for rank in range(size) for piece in pieces_of(rank, size)) == list(range(2 * size))


def test_positions_of_whole_sequences_are_those_at_hand() -> None:
    assert positions(5).tolist() == [0, 1, 2, 3, 4]


def test_all_tensors_of_a_batch_go_to_the_device_whatever_holds_them() -> None:
    """On "meta", which is a device like a GPU in this: where ranks train on CPUs nothing is moved."""
    batch = {"named": Named(TOKENS, "label"), "other": UserDict({"x": [TOKENS, 3]})}
    moved = _to_device(batch, torch.device("meta"))
    assert isinstance(moved["named"], Named)
    assert (moved["named"].label, moved["other"]["x"][1]) == ("label", 3)
    assert moved["named"].ids.is_meta and moved["other"]["x"][0].is_meta
    assert not batch["named"].ids.is_meta


def test_a_batch_is_cut_by_name_or_place() -> None:
    assert cut({"ids": TOKENS, "weight": 1.0}, {"ids": 1}, 1, 2)["ids"][0].tolist() == [3, 4, 5, 6, 7, 8]
    named = cut(Named(TOKENS, "label"), {"0": 1}, 1, 2)
    assert (named.ids[0].tolist(), named.label) == ([3, 4, 5, 6, 7, 8], "label")
    assert cut(TOKENS, {"0": 1}, 0, 2)[1].tolist() == [12, 13, 14, 21, 22, 23]
    with pytest.raises(InvalidInputError, match=r"task\.rules\.tokens.*ids.*nearest.*0"):
        cut((TOKENS,), {"ids": 1}, 0, 2)
    with pytest.raises(InvalidInputError, match=r"sequence length=12.*8 equal pieces.*8"):
        cut((TOKENS,), {"0": 1}, 0, 4)


def test_ranks_of_a_context_group_read_parts_of_the_same_samples() -> None:
    task, plan = transformer({"sequence": "8", "windows": "16"}), over(2, 2, batch=4)
    ranks = [Batches(task.dataset, task.collate, plan, rank, 0, task.rules.tokens) for rank in range(4)]
    chosen = [batches.indices(1) for batches in ranks]
    assert torch.equal(chosen[0][0], chosen[1][0]) and not torch.equal(chosen[0][0], chosen[2][0])
    first, second = (batches.load(chosen[0][0])[0] for batches in ranks[:2])
    windows = task.dataset[chosen[0][0]][0]
    assert torch.equal(torch.cat((first[:, :2], second, first[:, 2:]), dim=1), windows)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"data": ((0, 1, 2, 3),)}),
        (
            {"sharding": Sharding.FULL, "shard_ranks": 2},
            {"shard": ((0, 1), (2, 3)), "replicate": ((0, 2), (1, 3))},
        ),
    ],
)
def test_context_ranks_hold_parameters_like_data_ranks(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    specs = {spec.name: spec.members for spec in groups_of(over(2, 2, **fields))}
    assert specs == {"world": ((0, 1, 2, 3),), **expected, "context": ((0, 1), (2, 3))}
    assert whole(over(2, 2, **fields)) is not bool(fields)
    assert not whole(over(2, 1, sharding=Sharding.FULL))


def test_context_must_be_just_inside_data() -> None:
    groups = (AxisGroups(axis=Axis.DATA, size=2, stride=1), AxisGroups(axis=Axis.CONTEXT, size=2, stride=2))
    with pytest.raises(InvalidInputError, match=r"plan\.groups\.context\.stride=2.*just inside data"):
        groups_of(make_plan(4, groups=groups, context=2, data=2))


def experts_over(data: int, expert: int, stride: int = 1) -> ParallelPlan:
    overlay = OverlayGroups(axis=Overlay.EXPERT, size=expert, stride=stride)
    return make_plan(data, expert=expert, overlays=(overlay,))


def test_experts_are_divided_over_neighbours_and_copied_across() -> None:
    specs = members(experts_over(4, 2))
    assert (specs["expert"], specs["expertData"]) == (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    assert members(experts_over(4, 4))["expertData"] == ((0,), (1,), (2,), (3,))
    for wrong in (experts_over(4, 2, stride=2), experts_over(4, 3), make_plan(4, expert=2)):
        with pytest.raises(InvalidInputError, match=r"plan\.overlays\.expert"):
            groups_of(wrong)


def members(plan: ParallelPlan) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {spec.name: spec.members for spec in groups_of(plan)}


SINGLES = tuple((rank,) for rank in range(4))


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (split(tensor=2, pipeline=2, expert=2), {"expert": ((0, 1), (2, 3)), "expertData": SINGLES, "data": SINGLES}),
        (split(tensor=2, data=2, expert=4), {"expert": ((0, 1, 2, 3),), "expertData": SINGLES}),
        (split(tensor=2, data=2, expert=1), {"expert": SINGLES, "expertData": ((0, 1, 2, 3),)}),
        (
            split(tensor=2, data=4, expert=2, sharding=Sharding.FULL, shard_ranks=2),
            {
                "expertShard": ((0, 2), (1, 3), (4, 6), (5, 7)),
                "expertReplicate": ((0, 4), (1, 5), (2, 6), (3, 7)),
            },
        ),
        (
            split(data=4, expert=2, sharding=Sharding.FULL, shard_ranks=2),
            {"expert": ((0, 1), (2, 3)), "expertReplicate": ((0, 2), (1, 3))},
        ),
    ],
)
def test_experts_go_over_all_ranks_of_a_stage(plan: ParallelPlan, expected: dict[str, Any]) -> None:
    """Tensor ranks first; a stage whose data is whole on one rank has an axis of data all the same."""
    specs = members(plan)
    assert {name: specs[name] for name in expected} == expected
    assert not any(name.startswith("expert") for name in members(split(data=4)))


def test_experts_that_no_stage_holds_together_are_refused() -> None:
    axes = ((Axis.TENSOR, 2, 1), (Axis.PIPELINE, 2, 2), (Axis.DATA, 2, 4))
    groups = tuple(AxisGroups(axis=axis, size=size, stride=stride) for axis, size, stride in axes)
    overlay = OverlayGroups(axis=Overlay.EXPERT, size=2, stride=1)
    plan = make_plan(8, groups=groups, overlays=(overlay,), tensor=2, pipeline=2, data=2, expert=2)
    with pytest.raises(InvalidInputError, match=r"plan\.groups\.pipeline\.stride=2: parts ranks of one stage"):
        groups_of(plan)
    uneven = split(data=20, batch=20, expert=4, sharding=Sharding.FULL, shard_ranks=10)
    with pytest.raises(InvalidInputError, match=r"plan\.shardRanks=10.*2 shards of experts.*5 ranks"):
        groups_of(uneven)


def test_every_expert_is_called_once_and_its_part_is_weighted() -> None:
    torch.manual_seed(1)
    experts = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(4))
    tokens, weights = torch.rand(6, 4), torch.rand(6, 2)
    chosen = torch.tensor([[0, 1], [1, 3], [3, 0], [0, 3], [1, 0], [3, 1]])
    mixed = mixture(experts, tokens, weights, chosen)
    by_hand = [
        sum(w * experts[int(e)](t) for w, e in zip(*row, strict=True))
        for t, *row in zip(tokens, weights, chosen, strict=True)
    ]
    torch.testing.assert_close(mixed, torch.stack(by_hand))
    mixed.sum().backward()
    unused = experts[2].weight.grad
    assert unused is not None and not unused.any(), "what others average must be there"


def test_a_model_that_calls_divided_experts_itself_is_refused() -> None:
    module = nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(2, 2) for _ in range(4))})
    rules = ParallelRules(experts=("experts",))
    assert keep_own(module, rules, 1, 2) == (("experts.2", "experts.3"),)
    assert next(name for name, _ in module.named_parameters()) == "experts.2.weight"
    with pytest.raises(InvalidInputError, match=r"task\.rules\.experts.*calls experts by itself"):
        module["experts"][0](torch.rand(2))


@pytest.mark.parametrize(
    ("pattern", "size", "field"),
    [
        ("experts", 3, r"plan\.expert=3.*4 experts"),
        ("gone", 2, r"task\.rules\.experts"),
        ("experts.0", 2, "ModuleList"),
    ],
)
def test_experts_that_cannot_be_divided_are_refused(pattern: str, size: int, field: str) -> None:
    module = nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(2, 2) for _ in range(4))})
    with pytest.raises(InvalidInputError, match=field):
        check_experts(module, ParallelRules(experts=(pattern,)), size)


def test_experts_without_a_style_for_tokens_that_are_divided_are_refused() -> None:
    module = moe({"layers": "1", "windows": "8"}).model()
    check_tokens(module, MOE_RULES)
    for style in ({}, {"blocks.*.ffn": TensorStyle.WHOLE}, {"blocks.*.ffn.router": TensorStyle.SEQUENCE}):
        with pytest.raises(InvalidInputError, match=r"rules\.tensor='blocks\.0\.ffn\.experts': .*style sequence"):
            check_tokens(module, MOE_RULES.replace(tensor=style))


def test_what_belongs_to_an_expert_is_told_by_its_whole_path() -> None:
    own = cast("DeviceMesh", "own")
    holders = Holders(None, own, ("blocks.1.experts.1",))
    theirs = ("blocks.1.experts.1.up", "blocks.1.experts.1.up.exp_avg")
    others = ("blocks.1.experts.10.up", "a.blocks.1.experts.1.up", "experts.1.up", "blocks.1.experts.1")
    assert [holders.of(name) for name in theirs] == [own, own]
    assert [holders.of(name) for name in others] == [None] * 4
    entries = ("module.{}", "optimizer.state.{}.exp_avg", "optimizer.param_groups.{}.lr")
    assert all(holders.of_entry(entry.format(theirs[0])) is own for entry in entries)
    assert not any(holders.of_entry(entry.format(name)) for entry in entries for name in others[:3])
    assert Holders(None, own, ("module.experts.0",)).of_entry("module.module.experts.0.up") is own


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("context=2: the task has no rules.tokens", {"context": 2}),
        ("expert=2: the task has no rules.experts", {"expert": 2}),
        ("sequence=False: would have every tensor rank send the same tokens", {"expert": 2, "tensor": 2}),
        ("shardRanks=1", {"tensor": 2, "data": 2, "sharding": Sharding.FULL, "shard_ranks": 1, "sequence": True}),
        ("expertTensor=2", {"expert": 2, "expert_tensor": 2}),
    ],
)
def test_what_this_worker_does_not_divide_is_refused_by_name(field: str, fields: dict[str, Any]) -> None:
    rules = ParallelRules(tensor={"a": TensorStyle.WHOLE}, experts=("b",) if len(fields) > 1 else ())
    with pytest.raises(InvalidInputError, match=f"plan.{field}"):
        require_runnable(make_plan(4, **fields), rules)
