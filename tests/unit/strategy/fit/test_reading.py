"""The table of runs: every column has its meaning, and every fault its line."""

from collections.abc import Callable

import pytest

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Optimizer, Precision, Recompute, Sharding
from kuangchao_operator.layers.strategy.fit.reading import runs_of
from kuangchao_operator.layers.strategy.fit.runs import Figure
from kuangchao_operator.layers.strategy.footprint.setting import Loss, Recomputed

LEAST = {"id": "a", "layers": 8, "hidden": 512, "heads": 8, "ffn": 2048, "vocab": 1000, "seq": 128, "mbs": 2, "gbs": 8}
MEASURED = {"peak_mem_gib": 1.5}


def table(*lines: dict[str, object]) -> str:
    names = list(dict.fromkeys(name for line in lines for name in line))
    rows = [",".join(f'"{value}"' for value in (line.get(name, "") for name in names)) for line in lines]
    return "\n".join([",".join(names), *rows])


def test_a_line_with_the_least_means_the_defaults() -> None:
    (run,) = runs_of(table(LEAST | MEASURED))
    assert (run.name, run.group, run.measured, run.figure, run.stage) == (
        "a",
        "8x512",
        3 * 2**29,
        Figure.ALLOCATED,
        "fullest",
    )
    assert (run.setting.backend, run.setting.micro_batches, run.setting.layout.world) == ("kuangchao", 4, 1)
    assert (run.setting.precision, run.setting.recompute) == (Precision.BF16, Recompute.NONE)


def test_every_column_arrives() -> None:
    line = LEAST | MEASURED | {
        "gbs": 64, "group": "g",
        "backend": "megatron", "kv_heads": 2, "head_dim": 64, "gated": 0, "tied": 1, "experts": 4,
        "topk": 1, "moe_ffn": 256, "tp": 2, "pp": 2, "cp": 2, "ep": 2, "dp": 4, "vp": 2, "sp": 1, "shard_ranks": 4,
        "sharding": "optimizer", "precision": "fp8", "optimizer": "muon", "recompute": "core_attn+mlp",
        "loss": "sharded", "allocator": "expandable", "unfused": 1, "dropout": 1, "figure": "device", "stage": "last",
    }  # fmt: skip
    (run,) = runs_of(table(line))
    setting, model, layout = run.setting, run.setting.model, run.setting.layout
    assert (run.group, run.figure, run.stage) == ("g", Figure.DEVICE, "last")
    assert (model.kv_heads, model.head_dim, model.gated_ffn, model.tied_embeddings) == (2, 64, False, True)
    assert model.experts is not None
    assert (model.experts.count, model.experts.per_token, model.experts.ffn) == (4, 1, 256)
    assert (layout.tensor, layout.pipeline, layout.context, layout.expert, layout.data) == (2, 2, 2, 2, 4)
    assert (layout.virtual, layout.sequence, layout.shard_ranks) == (2, True, 4)
    assert (setting.sharding, setting.precision, setting.optimizer) == (
        Sharding.OPTIMIZER,
        Precision.FP8,
        Optimizer.MUON,
    )
    assert setting.modules == {Recomputed.CORE_ATTENTION, Recomputed.FFN}
    assert (setting.loss, setting.allocator, setting.dropout, setting.fused_attention) == (
        Loss.SHARDED,
        "expandable",
        True,
        False,
    )


def test_a_model_may_stand_as_describe_model_writes_it() -> None:
    descriptor = '{""layers"":8,""hidden"":512,""heads"":8,""ffn"":2048,""vocab"":1000,""frozenLayers"":3}'
    line = {name: value for name, value in LEAST.items() if name in ("id", "seq", "mbs", "gbs")} | MEASURED
    (run,) = runs_of(table(line | {"descriptor": descriptor}))
    assert run.setting.model.frozen_layers == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layers": "many"}, "line 2: layers='many'"),
        ({"layers": ""}, "line 2: layers"),
        ({"hidden": 0}, "line 2: hidden='0'.*nearest legal value: 1$"),
        ({"tp": 2**21}, "line 2: tp='2097152'.*nearest legal value: 1048576$"),
        ({"sharding": "all"}, "line 2: sharding='all'.*nearest legal value: 'none', "),
        ({"peak_mem_gib": "nan"}, "line 2: peak_mem_gib"),
        ({"peak_mem_gib": "-1"}, "line 2: peak_mem_gib"),
        ({"peak_mem_gib": "1e-12"}, "line 2: peak_mem_gib"),
        ({"recompute": "everything"}, "line 2: recompute='everything'.*moe_act"),
        ({"gbs": 9}, "line 2: gbs=9: is no multiple of mbs 2 x dp [0-9]; nearest legal value: 8 or 1[0-9]$"),
        (
            {"tp": 3},
            "line 2: tp=3: .* 8 heads: it may be 1, 2, 4, 8; nearest legal value: 2 or 4$",
        ),
        ({"pp": 16}, "line 2: pp=16: .*nearest legal value: [0-9]$"),
        ({"stage": "1"}, "line 2: stage='1'"),
        ({"stage": "first"}, "line 2: stage='first'"),
        ({"descriptor": "{}"}, "line 2: "),
        ({"colour": "red"}, "column='colour'.*nearest legal value: id, group"),
    ],
    ids=str,
)
def test_a_fault_is_named_with_its_line(change: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        runs_of(table(LEAST | MEASURED | change))


def test_two_runs_of_one_name_and_no_run_at_all_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"'a'.*two lines"):
        runs_of(table(LEAST | MEASURED, LEAST | MEASURED))
    for empty in ("", "id,seq"):
        with pytest.raises(InvalidInputError, match="runs=0"):
            runs_of(empty)


@pytest.mark.parametrize(
    ("change", "field", "told"),
    [
        (lambda text: text.replace("id,", "seq,id,", 1).replace("\n", "\n8,", 1), "column", "stands twice"),
        (lambda text: text.rstrip("\n") + ",1,2\n", "line 2", "stands beyond the"),
        (lambda text: text.replace("\n", "\n\n", 1).rstrip("\n") + ",1\n", "line 3", "stands beyond the"),
        (lambda text: text.replace("\n", "\n" + "x" * 200_000, 1), "line 2", "is no CSV: field larger than"),
    ],
)
def test_a_table_that_is_out_of_shape_is_told_by_its_line(change: Callable[[str], str], field: str, told: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        runs_of(change(table(LEAST | MEASURED)))
    assert (refused.value.field, told in refused.value.why) == (field, True), refused.value
