"""The suite `worker`: readings for `kuangchao calibrate`, what the context is used for, plans, steps that tick."""

from pathlib import Path

import pytest
import torch
from bench import contextcost, footprint, groups
from bench.footprint import CASES, Case, Reading, high_water, rank_of, table
from bench.layouts import MICRO_BATCHES, Layout
from bench.workloads import Ticking
from torch.utils.data import TensorDataset

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.plan import MeasuredModel, TransformerModel
from kuangchao_operator.layers.strategy.fit.reading import runs_of
from kuangchao_operator.layers.strategy.fit.runs import Figure
from kuangchao_worker.layers.topology.decide import build_order, groups_of

GIB = 2**30
DENSE = TransformerModel(layers=4, hidden=64, heads=4, ffn=128, vocab=256)
COUNTED = MeasuredModel(name="m", parameters=10, trainable_parameters=10, buffer_bytes=0)


def reading(layout: Layout, *peaks: int, model: TransformerModel | MeasuredModel = DENSE) -> Reading:
    return Reading(Case("text:transformer", layout, 32, {"sequence": "128"}), model, peaks, peaks)


def test_readings_are_runs_that_calibrate_takes() -> None:
    found = runs_of(table([reading(Layout.SHARDED, GIB), reading(Layout.PIPELINE, 2 * GIB, 3 * GIB)]))
    assert [(run.measured, run.stage, run.figure) for run in found] == [
        (GIB, "0", Figure.DEVICE), (2 * GIB, "0", Figure.DEVICE), (3 * GIB, "1", Figure.DEVICE)
    ]  # fmt: skip
    sharded, first, _ = (run.setting for run in found)
    assert (sharded.layout.data, sharded.sharding, sharded.micro_batch) == (2, "full", 16)
    assert (first.layout.pipeline, first.micro_batch, first.micro_batches) == (2, 8, MICRO_BATCHES)
    assert {run.setting.backend for run in found} == {"kuangchao-cpu"}
    assert {run.setting.model for run in found} == {DENSE}


def test_models_that_only_count_parameters_are_no_run_of_a_fit() -> None:
    assert len(table([reading(Layout.DATA, GIB, model=COUNTED)]).splitlines()) == 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_a_job(case: Case, tmp_path: Path) -> None:
    job = TrainingJob.model_validate(case.job(COUNTED, tmp_path))
    assert job.spec.training.global_batch == case.batch
    assert job.spec.parallelism.micro_batch == case.batch // case.layout.replicas // case.layout.loads


def test_a_rank_is_known_by_its_title_and_its_peak_is_the_kernels(tmp_path: Path) -> None:
    assert rank_of(["kuangchao_worker.rank rank=3 ....."]) == 3
    assert rank_of(["kuangchao_worker.store attempt=1"]) is None
    assert rank_of(["python", "-m", "kuangchao_worker.rank", "/run/rank-1.json"]) is None
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t 9 kB\nVmHWM:\t  2048 kB\nVmRSS:\t 3 kB\n")
    assert high_water(status) == 2 * footprint.MIB
    status.write_text("Name:\tpython\nState:\tZ (zombie)\n")
    assert high_water(status) == 0


def test_the_context_is_measured_by_what_the_executor_does_with_it() -> None:
    acts = contextcost.acts_of_a_step()
    names = [name for name, _, _ in acts]
    assert ("step", (contextcost.STEPS // 2 + 1,), False) in acts
    assert {"enter", "done", "samples"} <= set(names)
    assert names.count("step") == 1, "of one step"
    assert contextcost.microseconds(acts, 2) > 0


def test_plans_whose_links_are_measured_have_their_ranks() -> None:
    assert groups.plan_of(groups.BOX).world_size == 64
    large = groups.plan_of(groups.LARGE)
    assert large.world_size == 16_384
    order = build_order(groups_of(large))
    assert [len(spec.members) for spec in order] == [1, 2_048, 128, 1_024]


@pytest.mark.parametrize(("loads", "ticks"), [(1, 6), (3, 2)])
def test_a_step_begins_once_however_often_it_loads_and_single_samples_count_nothing(loads: int, ticks: int) -> None:
    told: list[int] = []
    data = TensorDataset(torch.arange(8))
    data.tensors = (Ticking(data.tensors[0], loads, lambda: told.append(1)),)
    assert (len(data), data[3][0]) == (8, 3)
    for _ in range(6):
        assert data[torch.tensor([1, 2])][0].tolist() == [1, 2]
    assert len(told) == ticks
