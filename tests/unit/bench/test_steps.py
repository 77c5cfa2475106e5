"""The benchmark of step times: what a row says of its step, and how choices among measured plans are judged."""

from typing import Any

import pytest
from bench.planner.__main__ import SHIPPED
from bench.planner.choice import Candidate, groups
from bench.planner.rows import COLUMNS, Row, read
from bench.planner.score import answer
from bench.planner.settings import settings_of
from bench.planner.steps import MULTI_NODE, step_summary, targets
from bench.planner.timing import Timed, machine_of_row, timed

from kuangchao_contracts.fabric import Fabric
from kuangchao_operator.layers.strategy.footprint.shipped import load
from kuangchao_operator.layers.strategy.timing.flops import operations
from kuangchao_operator.layers.strategy.timing.shipped import load as load_hardware
from kuangchao_operator.layers.strategy.timing.step import StepTime

HARDWARE = load_hardware()
PLAIN = {
    "source": MULTI_NODE,
    "model": "GPT-3.6B",
    "layers": "30",
    "hidden": "3072",
    "heads": "32",
    "head_dim": "96",
    "ffn": "12288",
    "vocab": "51200",
    "seq": "2048",
    "gpu": "A100-80GB",
    "gpu_mem_gb": "80",
    "gpus": "64",
    "tp": "8",
    "pp": "1",
    "dp": "8",
    "mbs": "4",
    "gbs": "512",
    "precision": "fp16",
    "recompute": "full",
    "attn": "unfused",
    "outcome": "ok",
}


def row(**changes: str) -> Row:
    return Row(cells={**dict.fromkeys(COLUMNS, ""), **PLAIN, **changes})


def measured(**changes: str) -> float | None:
    one = row(**changes)
    found = timed(one, settings_of(one)[0], HARDWARE)
    return None if found is None else found.measured


def test_seconds_before_tokens_before_shares_of_the_peak() -> None:
    assert measured(step_s="5.5", tok_s_gpu="1", mfu_pct="1") == 5.5
    assert measured(tok_s_gpu="4096", mfu_pct="1") == 512 * 2048 / (4096 * 64)
    needed = operations(settings_of(row())[0]).model
    assert measured(mfu_pct="25", tflops_gpu="1") == pytest.approx(needed / (64 * 0.25 * 312e12))
    assert measured(tflops_gpu="78") == pytest.approx(needed / (64 * 78e12))
    assert measured() is None
    assert measured(gpu="Voodoo 2", step_s="1") is None


def test_the_network_is_the_one_that_the_row_states() -> None:
    one = row(notes="1F1B, 8 GPUs per node, 800 Gb/s inter-node")
    found = machine_of_row(one, settings_of(one)[0], HARDWARE)
    assert found is not None
    assert found.fabric == Fabric(island=8, nics=1, nic_bytes_per_second=100 * 10**9)
    assert (found.per_node, found.nodes) == (8, 8)
    usual = machine_of_row(row(), settings_of(row())[0], HARDWARE)
    assert usual is not None
    assert usual.fabric is None


def test_a_size_that_the_row_leaves_open_is_the_fastest() -> None:
    table = row(source="NVIDIA/Megatron-LM:README.md", mbs="")
    fast = timed(table, settings_of(table)[0], HARDWARE)
    times = [timed(row(mbs=str(size)), settings_of(row(mbs=str(size)))[0], HARDWARE) for size in (1, 4)]
    assert fast is not None
    assert all(one is not None and fast.seconds < one.seconds for one in times)


def test_faster_than_the_peak_is_no_measurement() -> None:
    one = row(step_s="0.1")
    found = timed(one, settings_of(one)[0], HARDWARE)
    assert found is not None
    assert found.impossible
    assert found.error is None
    assert step_summary([(one, found)])["stepTime"] == {"sources": {}, "impossible": [one.id]}


def plan(measured: float, predicted: float, **changes: str) -> Candidate:
    return Candidate(row(**changes), measured, predicted)


def test_a_choice_is_judged_by_measured_times_alone() -> None:
    plans = [
        plan(5.0, 5.1, id="default", mbs="32"),
        plan(5.5, 4.9, id="small", mbs="2"),
        plan(6.0, 4.8, id="pipeline", pp="2", mbs="64"),
        plan(4.0, 4.4, id="best", tp="1"),
        plan(4.4, 4.2, id="pick", tp="2"),
    ]
    (found,) = groups([*plans, plan(1.0, 1.0, gbs="8")])
    assert (found.pick.row.id, found.default and found.default.row.id) == ("pick", "default")
    assert found.ratio == pytest.approx(1.1)
    assert found.gain == pytest.approx(5.0 / 4.4)
    assert found.spearman == pytest.approx(0.5)


def test_few_plans_have_no_ranking_and_some_groups_no_default() -> None:
    (found,) = groups([plan(1.0, 1.0, tp="2"), plan(2.0, 2.0, tp="4")])
    assert (found.spearman, found.default, found.gain) == (None, None, None)
    (equal,) = groups([plan(1.0, 1.0)] * 5)
    assert equal.spearman == 0


def step(seconds: float, of: float) -> Timed:
    return Timed(StepTime(round(seconds * 1e6), *[0] * 10), of)


def test_targets_are_only_for_what_a_file_has() -> None:
    assert targets([]) == []
    assert targets([(row(source="somewhere"), step(1.0, 2.0))]) == []
    found = targets([(row(tp=str(1 << n)), step(1.0 + n, 1.1 + n)) for n in range(5)])
    assert {figure.name: figure.met for figure in found} == {
        "mean absolute error, multi-node, fitted": True,
        "pick / best, worst group": True,
        "Spearman, worst group": True,
        "default / pick, mean": True,
        "default / pick, worst": True,
    }
    wrong: list[Any] = [(row(tp=str(1 << n)), step(5.0 - n, 1.1 + n)) for n in range(5)]
    assert [figure.met for figure in targets(wrong)] == [False] * 5


def test_what_figures_were_fitted_to_does_not_count_for_what_was_held_out() -> None:
    steps = [(row(step_s="1"), step(1.0, 1.0)), (row(model="GPT-18.4B", step_s="1"), step(1.5, 1.0))]
    assert {figure.name: (figure.value, figure.met) for figure in targets(steps) if figure.group == "step time"} == {
        "mean absolute error, multi-node, fitted": (0.0, True),
        "mean absolute error, multi-node, held out": (0.5, False),
    }
    rows = {name: found["rows"] for name, found in step_summary(steps)["stepTime"]["sources"].items()}
    assert rows == {f"{MULTI_NODE}, fitted": 1, f"{MULTI_NODE}, held out": 1}


def test_the_shipped_rows_meet_the_targets() -> None:
    answers = [answer(one, load(), HARDWARE) for one in read(SHIPPED)]
    steps = [(one.row, one.step) for one in answers if one.step is not None]
    assert all(figure.met for figure in targets(steps))
    assert len(targets(steps)) == 6
