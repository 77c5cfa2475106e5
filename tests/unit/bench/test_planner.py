"""The benchmark of the memory model: reading rows, saying what it cannot estimate, and the promised output."""

import csv
import json
from pathlib import Path

import pytest
from bench.planner.__main__ import SHIPPED, main
from bench.planner.rows import COLUMNS, Row, read
from bench.planner.score import answer, summary
from bench.planner.settings import settings_of
from bench.planner.sources import Figure, source_of
from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts.plan import Optimizer, Precision, Recompute, Sharding
from kuangchao_operator.layers.strategy.footprint.setting import Loss
from kuangchao_operator.layers.strategy.footprint.shipped import load
from kuangchao_operator.layers.strategy.timing.shipped import load as load_hardware

PLAIN = {
    "id": "X1",
    "source": "NVIDIA/Megatron-LM:tests/gpt3_x",
    "model": "gpt3_x",
    "layers": "12",
    "hidden": "512",
    "heads": "8",
    "kv_heads": "8",
    "ffn": "2048",
    "vocab": "50257",
    "seq": "1024",
    "gpu_mem_gb": "80",
    "tp": "1",
    "pp": "4",
    "dp": "2",
    "vp": "1",
    "shard": "none",
    "mbs": "4",
    "gbs": "32",
    "precision": "bf16",
    "recompute": "none",
    "attn": "unfused",
    "outcome": "ok",
}


GOLDEN = "NVIDIA/Megatron-LM:tests/functional_tests/test_cases/moe/x"


def row(**changes: str) -> Row:
    return Row(cells={**dict.fromkeys(COLUMNS, ""), **PLAIN, **changes})


def test_a_row_becomes_a_setting() -> None:
    (wish,) = settings_of(row(notes="decoder-first-pipeline-num-layers=2; decoder-last-pipeline-num-layers=2"))
    assert wish.layout.stage_layers == (2, 4, 4, 2)
    assert (wish.micro_batches, wish.precision, wish.sharding) == (4, Precision.BF16, Sharding.NONE)
    assert wish.model.tied_embeddings
    assert wish.dropout
    assert not wish.fused_attention


def test_flags_of_a_golden_test_say_what_its_columns_do_not() -> None:
    shape = {"attn": "auto", "pp": "1", "dp": "8", "experts": "8", "topk": "2", "ep": "2", "source": GOLDEN}
    (plain,) = settings_of(row(**shape))
    assert (plain.layout.dense_shards, plain.fused_attention, plain.grouped_experts) == (8, True, False)
    flags = (
        "num-distributed-optimizer-instances=2; transformer-impl=local; moe-grouped-gemm=True;"
        " moe-shared-expert-intermediate-size=512; moe-layer-freq=([0]*1+[1]*11); multi-latent-attention=True;"
        " q-lora-rank=1536; kv-lora-rank=512"
    )
    (told,) = settings_of(row(**shape, notes=flags))
    assert (told.layout.dense_shards, told.fused_attention, told.grouped_experts) == (4, False, True)
    assert told.model.experts is not None
    assert (told.model.experts.shared_ffn, told.model.experts.dense_layers) == (512, 1)
    assert told.model.latent_attention is not None
    assert (told.model.latent_attention.query_rank, told.model.latent_attention.kv_rank) == (1536, 512)


def test_open_columns_are_the_planners_to_fill_where_the_source_means_it_so() -> None:
    bridge = row(source="NVIDIA-NeMo/Megatron-Bridge:docs/performance-summary.md", model="Moonlight", recompute="")
    assert [wish.recompute for wish in settings_of(bridge)] == [Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL]
    assert settings_of(bridge)[0].optimizer is Optimizer.ADAMW_BF16
    assert len(settings_of(row(recompute=""))) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden": ""}, "unsupported: not stated: hidden"),
        ({"mbs": ""}, "unsupported: not stated: mbs"),
        ({"tp": ""}, "unsupported: not stated: tp"),
        ({"dp": "0"}, "unsupported: dp=0 is no size"),
        ({"layers": "0"}, "unsupported: layers: Input should be greater than or equal to 1"),
        ({"pp": "16"}, "unsupported: 12 layers are too few for 16 pieces"),
        ({"seq": ""}, "unsupported: not stated: seq"),
        ({"shard": "zero3+nvme"}, "unsupported: sharding zero3+nvme is not built"),
        ({"recompute": "half"}, "unsupported: recompute half is not built"),
        ({"model": "Nemotron-3-Nano"}, "unsupported: Nemotron-3-Nano: layers that are no transformer layers"),
        ({"notes": "decoder-first-pipeline-num-layers=5"}, "unsupported: 12 layers less 5 cannot be divided"),
    ],
)
def test_what_cannot_be_estimated_is_said_and_never_called_feasible(changes: dict[str, str], reason: str) -> None:
    found = answer(row(**changes), load())
    assert found.feasible is None
    assert found.reason.startswith(reason)
    assert found.record()["allocatedGiB"] is None


@pytest.mark.parametrize("peak", ["", "0", "0.0"])
def test_a_row_without_a_peak_has_no_error(peak: str) -> None:
    found = answer(row(peak_mem_gib=peak), load())
    assert found.stages
    assert found.error() is None


SIZES = ("layers", "heads", "ffn", "seq", "experts", "tp", "pp", "cp", "ep", "dp", "vp", "mbs", "gbs", "vocab")


@given(
    sizes=st.fixed_dictionaries(
        {name: st.sampled_from(["", "0", "1", "2", "3", "8", "-1", "1e9", "x"]) for name in SIZES}
    )
)
def test_whatever_numbers_a_row_has_it_gets_an_answer(sizes: dict[str, str]) -> None:
    found = answer(row(**sizes, gpu="H100-80GB"), load(), load_hardware())
    assert found.reason
    assert (found.feasible is None) == (found.allocated is None)


def test_every_framework_answers_for_every_precision_loss_and_allocator() -> None:
    for backend in load().backends.values():
        assert set(backend.states) == set(backend.element) == set(backend.linear_input) == set(Precision)
        assert set(backend.logit_bytes) == set(Loss)
        assert {"default", "expandable"} <= set(backend.reserved_permille)
        assert backend.source


def test_a_row_without_results_is_answered_and_not_scored() -> None:
    found = answer(row(outcome="", peak_mem_gib=""), load())
    assert found.feasible
    assert found.error() is None
    assert summary([found])["memory"] == {}
    assert set(found.record()) == {
        "id",
        "allocatedGiB",
        "lastStageAllocatedGiB",
        "reservedGiB",
        "stepSeconds",
        "feasible",
        "reason",
    }


def test_like_is_compared_with_like() -> None:
    last = answer(row(peak_mem_gib="2.0"), load())
    assert source_of(last.row).figure is Figure.LAST_STAGE
    assert last.figure() == last.last != last.allocated
    titan = answer(row(source="pytorch/torchtitan:x", peak_mem_gib="2.0"), load())
    assert titan.reserved is not None
    assert titan.allocated is not None
    assert titan.figure() == titan.reserved > titan.allocated


def test_a_layout_that_cannot_be_is_refused_whatever_its_memory() -> None:
    found = answer(row(gpus="12"), load())
    assert found.feasible is False
    assert found.reason.startswith("data=2 contradicts devices=12: tensor 1 x context 1 x pipeline 4 x data 2")


def test_log_probabilities_of_long_sequences_do_not_fit() -> None:
    """THUDM/slime#1522: 4B at 64 thousand tokens on four H200s, tensor 2, full recomputation: out of memory."""
    qwen = {"model": "Qwen3-4B", "layers": "36", "hidden": "2560", "heads": "32", "kv_heads": "8", "head_dim": "128"}
    run = {"ffn": "9728", "vocab": "151936", "seq": "65536", "tp": "2", "pp": "1", "dp": "2", "sp": "1", "mbs": "1"}
    more = {
        "source": "THUDM/slime#1522",
        "gbs": "2",
        "gpus": "4",
        "gpu_mem_gb": "141",
        "shard": "zero1",
        "recompute": "full",
        "attn": "flash",
    }
    assert answer(row(**qwen | run | more), load()).feasible is False
    assert answer(row(**qwen | run | more | {"seq": "8192"}), load()).feasible


def test_a_paper_leaves_out_what_fitted_and_a_report_what_nobody_knows() -> None:
    assert answer(row(source="a paper, table 1", mbs="", recompute=""), load()).feasible
    assert answer(row(source="somebody/project#1", mbs=""), load()).reason == "unsupported: not stated: mbs"


def test_a_small_device_is_refused_with_the_numbers() -> None:
    found = answer(row(gpu_mem_gb="2"), load())
    assert found.feasible is False
    assert "GiB usable" in found.reason


def test_the_shipped_rows_meet_the_targets() -> None:
    found = summary([answer(one, load()) for one in read(SHIPPED)])
    assert found["feasibility"]["oomCalledFeasible"] == []
    assert found["feasibility"]["fittingMissedShare"] <= 0.10
    for figure, limit in (("last stage", 0.10), ("formula", 0.10), ("reserved", 0.20)):
        assert found["memory"][figure]["worst"] <= limit
    assert found["memory"]["allocated"]["meanAbsolute"] <= 0.10


def test_the_command_prints_json_and_refuses_what_is_no_truth_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerow(row().cells)
    assert main(["--truth", str(path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in printed["rows"]] == ["X1"]
    assert printed["rows"][0]["stepSeconds"] is None, "the row names no device"
    assert printed["summary"]["hardwareVersion"] == load_hardware().version
    path.write_text("id,model\n1,x\n")
    assert main(["--truth", str(path)]) == 2
    assert "no column source" in capsys.readouterr().err


def test_golden_values_of_further_tests_are_estimated_as_well() -> None:
    """Small models, every axis, experts, fp8, modules without fused kernels; no figure was fitted to them."""
    found = summary([answer(one, load()) for one in read(SHIPPED.with_name("megatron_golden.csv"))])
    peaks = found["memory"]["last stage"]
    assert peaks["rows"] >= 80
    assert peaks["median"] <= 0.01
    assert peaks["within10Percent"] >= 0.9 * peaks["rows"]
    assert found["feasibility"]["fittingCalledInfeasible"] == []


@pytest.mark.parametrize("flag", ["mtp-num-layers=1", "fine-grained-activation-offloading=True"])
def test_what_the_model_does_not_know_is_said_not_guessed(flag: str) -> None:
    found = answer(row(notes=flag), load())
    assert found.feasible is None
    assert found.reason.startswith("unsupported: gpt3_x: ")
    assert answer(row(notes="mtp-num-layers=0"), load()).feasible
