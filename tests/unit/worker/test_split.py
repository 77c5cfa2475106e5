"""How a plan divides a model and a step: pieces of tensors, links of a chain, operations, stand-ins for the module."""

import itertools
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import SGD

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Sharding
from kuangchao_contracts.rules import ParallelRules, TensorStyle
from kuangchao_worker.layers.execution.schedule import Agree, Commit, Compute, Pipe, compiled
from kuangchao_worker.layers.state.chain import Stage, chain, check_apart, cut, stage_links
from kuangchao_worker.layers.state.pieces import Piece, overlap, whole, within
from kuangchao_worker.layers.state.sharded import ShardedStore
from kuangchao_worker.layers.state.split import check_rules, check_untied, split_tensor
from kuangchao_worker.rank.stages import loss_of, model_input
from kuangchao_worker.tasks import NO_RULES, Task
from kuangchao_worker.tasks.digits import digits
from kuangchao_worker.tasks.text import RULES, transformer
from tests.unit.worker.fakegate import make_plan

SMALL = {"layers": "3", "hidden": "16", "ffn": "16", "heads": "2", "sequence": "8", "windows": "8"}


def test_any_two_cuts_of_a_tensor_cover_each_other_exactly_once() -> None:
    tensor = torch.arange(5 * 6).view(5, 6)
    rows = [Piece((start, 0), (size, 6)) for start, size in ((0, 2), (2, 2), (4, 1))]
    columns = [Piece((0, start), (5, 3)) for start in (0, 3)]
    for one, other in itertools.permutations((rows, columns, [whole(tensor.shape)]), 2):
        for target in other:
            found = torch.full(target.size, -1)
            for piece in one:
                part = overlap(piece, target)
                if part is not None:
                    written = tensor[within(whole(tensor.shape), piece)]
                    found[within(target, part)] = written[within(piece, part)]
            assert torch.equal(found, tensor[within(whole(tensor.shape), target)])


def test_pieces_apart_have_nothing_in_common_and_a_scalar_is_one_piece() -> None:
    assert overlap(Piece((0, 0), (2, 6)), Piece((2, 0), (2, 6))) is None
    assert overlap(Piece((0,), (0,)), Piece((0,), (4,))) is None
    assert overlap(whole(()), whole(())) == Piece((), ())
    assert whole(()).elements == 1


def test_a_step_is_its_micro_batches_then_commit_then_agreement() -> None:
    assert compiled(make_plan(2, accumulation=2)) == (Compute(0, False), Compute(1, True), Commit(), Agree())
    assert compiled(make_plan(2, accumulation=4, pipeline=2)) == (Pipe(), Commit(), Agree())


@pytest.mark.parametrize(
    ("pipeline", "layers", "stages"),
    [
        (3, (), [["embedding", "blocks.0"], ["blocks.1"], ["blocks.2", "norm", "head"]]),
        (2, (1, 2), [["embedding", "blocks.0"], ["blocks.1", "blocks.2", "norm", "head"]]),
        (4, (0, 1, 2, 0), [["embedding"], ["blocks.0"], ["blocks.1", "blocks.2"], ["norm", "head"]]),
    ],
)
def test_stages_are_cut_between_layers(pipeline: int, layers: tuple[int, ...], stages: list[list[str]]) -> None:
    module, plan = transformer(SMALL).model(), make_plan(pipeline, batch=12, pipeline=pipeline, stage_layers=layers)
    cut = [stage_links(module, RULES, plan, stage) for stage in range(pipeline)]
    assert [list(links) for links in cut] == stages
    tokens = torch.arange(8).unsqueeze(0)
    parts = [Stage(module, links) for links in cut]
    hidden: Any = tokens
    for part in parts:
        hidden = part(hidden)
    assert torch.equal(hidden, module(tokens))
    names = [name for part in parts for name in part.state_dict()]
    assert sorted(names) == sorted(module.state_dict()), "each keeps its name, so a checkpoint knows it again"


def test_a_sequential_is_a_chain_of_its_members() -> None:
    module = digits({}).model()
    assert stage_links(module, NO_RULES, make_plan(2, pipeline=2), 1) == ("3", "4", "5")


@pytest.mark.parametrize(
    ("rules", "plan", "message"),
    [
        (NO_RULES, {}, "plan.pipeline=2: .*chain is empty, .*nearest legal value: 1"),
        (ParallelRules(chain=("embedding", "block.*")), {}, r"chain='block\.\*'.*no module"),
        (ParallelRules(chain=("embedding", "blocks.*", "head")), {}, r"does not hold norm\.weight"),
        (RULES, {}, r"pipeline=2: does not divide 3 layers.*nearest legal value: stageLayers \[1, 2\]"),
        (RULES, {"virtual_stages": 2}, "virtualStages=2: does not divide 3 layers.*nearest legal value: 1"),
        (RULES, {"stage_layers": (1, 1)}, "no cut of 3 layers"),
        (RULES, {"virtual_stages": 2, "stage_layers": (1, 0, 1, 1)}, "leaves nothing for stage 1"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(rules: ParallelRules, plan: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        stage_links(transformer(SMALL).model(), rules, make_plan(2, pipeline=2, **plan), 0)


def test_a_rank_without_parameters_is_refused_before_there_are_links() -> None:
    bare = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU(), nn.ReLU())
    plan = make_plan(2, pipeline=2, accumulation=2)
    with pytest.raises(InvalidInputError, match=r"plan.stageLayers.*leaves pipeline rank 1 without parameters"):
        ShardedStore(bare, SGD, None, NO_RULES, plan)
    assert len(cut(bare, NO_RULES, plan.replace(stage_layers=(1, 3)))) == 2


def test_frozen_stages_need_an_optimizer_that_takes_them() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[0].requires_grad_(requires_grad=False)
    plan = make_plan(2, pipeline=2, accumulation=2)
    with pytest.raises(InvalidInputError, match=r"plan.stageLayers.*rank 0 only frozen.*empty parameter list"):
        ShardedStore(module, lambda given: SGD(p for p in given if p.requires_grad), None, NO_RULES, plan)
    ShardedStore(module, SGD, None, NO_RULES, plan)


def test_parameters_that_cannot_be_divided_over_data_ranks_are_refused_by_name() -> None:
    plan = make_plan(2, sharding=Sharding.FULL)
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].bias = nn.Parameter(module[1].bias.double())
    with pytest.raises(InvalidInputError, match=r"task\.model='1'.*1\.weight is float32, 1\.bias is float64"):
        ShardedStore(module, SGD, None, NO_RULES, plan)
    module[1].bias.requires_grad_(requires_grad=False)
    ShardedStore(module, SGD, None, NO_RULES, plan)
    module.register_parameter("scale", nn.Parameter(torch.ones(())))
    with pytest.raises(InvalidInputError, match=r"task\.model='scale'.*without dimensions.*\(1,\)"):
        ShardedStore(module, SGD, None, NO_RULES, plan)
    ShardedStore(module, SGD, None, NO_RULES, make_plan(2, data=1, pipeline=2, accumulation=2))


def test_tokens_that_nothing_divides_are_refused_where_the_plan_splits_them() -> None:
    plan = make_plan(2, data=1, tensor=2, sequence=True)
    rules = RULES.replace(tensor={name: style for name, style in RULES.tensor.items() if name != "embedding"})
    with pytest.raises(InvalidInputError, match=r"rules\.tensor='embedding'.*no style embedding"):
        ShardedStore(transformer(SMALL).model(), SGD, None, rules, plan)
    ShardedStore(transformer(SMALL).model(), SGD, None, rules, plan.replace(sequence=False))
    ShardedStore(transformer(SMALL).model(), SGD, None, RULES, plan)


def test_a_parameter_in_two_stages_is_refused() -> None:
    module = transformer(SMALL).model()
    stages = [stage_links(module, RULES, make_plan(3, batch=12, pipeline=3), n) for n in range(3)]
    check_apart(module, stages)
    module.get_submodule("head").weight = module.get_submodule("embedding").weight
    with pytest.raises(InvalidInputError, match=r"head\.weight.*same parameter as embedding\.weight"):
        check_apart(module, stages)
    check_apart(module, [[name for links in stages for name in links]])


def test_a_parameter_in_two_links_is_refused_where_links_are_sharded() -> None:
    module = transformer(SMALL).model()
    module.head.weight = module.embedding.weight
    plan = make_plan(2, sharding=Sharding.FULL)
    with pytest.raises(InvalidInputError, match=r"head\.weight.*same parameter as embedding\.weight, in another link"):
        ShardedStore(module, SGD, None, RULES, plan)
    ShardedStore(module, SGD, None, NO_RULES, plan)
    ShardedStore(module, SGD, None, RULES, make_plan(2, data=1, tensor=2))


def test_a_tensor_rule_that_means_nothing_is_refused() -> None:
    module = transformer(SMALL).model()
    check_rules(module, RULES)
    with pytest.raises(InvalidInputError, match=r"rules\.tensor='blocks\.\*\.atention'"):
        check_rules(module, ParallelRules(tensor={"blocks.*.atention": TensorStyle.WHOLE}))
    assert chain(module, NO_RULES) == ()


def test_weights_of_two_modules_are_not_split_and_a_module_in_two_places_is() -> None:
    tied, none = transformer(SMALL).model(), cast("DeviceMesh", None)
    tied.head.weight = tied.embedding.weight
    for one in ("head", "embedding"):
        rules = ParallelRules(tensor={one: RULES.tensor[one]})
        with pytest.raises(InvalidInputError, match=rf"rules\.tensor='{one}\.weight': is .*copy of its own"):
            split_tensor(tied, none, rules, sequence=False)
    check_untied(tied, ["blocks.0.ffn.up"])
    again = transformer(SMALL).model()
    again.blocks[1] = again.blocks[0]
    check_untied(again, ["blocks.0.ffn.up"])


def test_a_loss_is_cut_into_the_models_input_and_its_value() -> None:
    task = transformer(SMALL)
    module, batch = task.model(), task.dataset[torch.arange(2)]
    tokens = model_input(task, batch)
    assert torch.equal(tokens, batch[0])
    assert torch.equal(loss_of(task, module(tokens), batch), task.loss(module, batch))


def twice(module: nn.Module, batch: Any) -> torch.Tensor:
    return (module(batch) + module(batch)).sum()


def pair(module: nn.Module, batch: Any) -> torch.Tensor:
    return module(batch, batch)


def never(module: nn.Module, batch: Any) -> torch.Tensor:
    return batch.sum()


@pytest.mark.parametrize(
    ("loss", "call", "message"),
    [
        (never, model_input, "0: did not call"),
        (pair, model_input, "2: a pipeline's model takes one tensor"),
        (twice, lambda task, batch: loss_of(task, batch, batch), "2: calls of the model"),
    ],
)
def test_a_loss_that_cannot_be_cut_is_refused(loss: Any, call: Any, message: str) -> None:
    task: Task = replace(transformer(SMALL), loss=loss)
    with pytest.raises(InvalidInputError, match=f"task.loss={message}"):
        call(task, torch.ones(2))
