"""Main memory of ranks on CPU devices: the shipped figures against what `bench.footprint` measured."""

from collections import Counter
from pathlib import Path

import pytest
from bench import planner
from tests.unit.strategy.footprint.settings import CALIBRATION, LLAMA_8B, setting

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import Precision
from kuangchao_operator.layers.strategy.fit.decide import fit
from kuangchao_operator.layers.strategy.fit.reading import runs_of
from kuangchao_operator.layers.strategy.fit.runs import Run, estimate
from kuangchao_operator.layers.strategy.footprint.calibration import Calibration
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.peaks import allocator_kind

BACKEND = "kuangchao-cpu"
READINGS = runs_of((Path(planner.__file__).parents[1] / "data/cpu_memory.csv").read_text())
FITTED = ("transformer", "small transformer")
"""Models that a fit sees below; it is judged by the others."""
HELD = frozenset({"workspaceBytes", "activationPermille", "reservedPermille.default"})


def shares(runs: tuple[Run, ...], calibration: Calibration) -> list[float]:
    """(estimate - measured) / measured of each."""
    return [(estimate(run, calibration) - run.measured) / run.measured for run in runs]


@pytest.mark.parametrize("run", READINGS, ids=lambda run: run.name)
def test_no_reading_of_the_reference_models_is_more_than_is_planned(run: Run) -> None:
    """A rank that needs more is killed; one that needs less leaves memory unused, a third at the most here."""
    assert run.measured <= estimate(run, CALIBRATION) <= run.measured * 1.35


def test_fitted_to_half_of_the_readings_the_figures_are_better_on_the_rest() -> None:
    """Without the margin that the shipped figures have above a fit; from where they stood in the first calibration."""
    figures = CALIBRATION.backends[BACKEND]
    first = figures.replace(
        runtime_bytes=400 * 2**20, reserved_permille={**figures.reserved_permille, "default-pipeline": 1100}
    )
    base = CALIBRATION.replace(backends={**CALIBRATION.backends, BACKEND: first})
    seen = tuple(run for run in READINGS if run.group in FITTED)
    rest = tuple(run for run in READINGS if run.group not in FITTED)
    assert Counter(run.group for run in rest) == {"moe": 4, "deep transformer": 3, "wide transformer": 3}
    made = fit(seen, base, "0" * 64, HELD).calibration
    before, after = shares(rest, base), shares(rest, made)
    assert sum(map(abs, after)) < sum(map(abs, before))
    assert min(after) > min(before) / 2, "how much the worst of them is short"
    ours = made.backends[BACKEND]
    assert ours.runtime_bytes <= figures.runtime_bytes
    assert ours.reserved_permille["default-pipeline"] <= figures.reserved_permille["default-pipeline"]


@pytest.mark.parametrize(
    ("backend", "layout", "kind"),
    [
        (BACKEND, Layout(data=2), "default"),
        (BACKEND, Layout(pipeline=2), "default-pipeline"),
        (BACKEND, Layout(pipeline=2, virtual=2), "default-pipeline"),
        ("kuangchao", Layout(pipeline=2), "default"),
        ("megatron", Layout(pipeline=2), "default"),
        ("megatron", Layout(pipeline=2, virtual=2), "default-interleaved"),
    ],
    ids=str,
)
def test_a_pipeline_has_the_allocators_figure_of_its_own_where_there_is_one(
    backend: str, layout: Layout, kind: str
) -> None:
    schedule = Schedule.INTERLEAVED if layout.virtual > 1 else Schedule.ONE_F_ONE_B
    wish = setting(
        LLAMA_8B, backend=backend, layout=layout, micro_batches=2, schedule=schedule, precision=Precision.FP32
    )
    assert allocator_kind(wish, CALIBRATION.backends[backend]) == kind
