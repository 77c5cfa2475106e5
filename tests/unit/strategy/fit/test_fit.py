"""The fit finds figures that are known, is not led astray by one bad reading, and refuses what runs cannot tell."""

import re
from dataclasses import replace

import pytest
from tests.unit.strategy.fit.runs import BACKEND, GIB, grid, measured, truth, unmeasured
from tests.unit.strategy.footprint.settings import CALIBRATION

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Recompute
from kuangchao_operator.layers.strategy.fit.decide import NoBetterError, Outcome, fit
from kuangchao_operator.layers.strategy.fit.report import fit_json, run_cells, summary_lines
from kuangchao_operator.layers.strategy.fit.runs import Figure, Run
from kuangchao_operator.layers.strategy.fit.telling import IndistinguishableError, TooFewRunsError

DIGEST = "0" * 64
KNOWN = truth(
    activation_permille=1400,
    recompute_permille={Recompute.FULL: 1700},
    logit_bytes={**CALIBRATION.backends[BACKEND].logit_bytes, "plain": 11},
    reserved_permille={**CALIBRATION.backends[BACKEND].reserved_permille, "default": 1280},
    workspace_bytes=GIB // 2,
    runtime_bytes=3 * GIB // 2,
)


def found(runs: tuple[Run, ...], *hold: str) -> Outcome:
    return fit(runs, CALIBRATION, DIGEST, frozenset(hold))


def after(outcome: Outcome) -> dict[str, int]:
    return {one.name: one.after for one in outcome.fit.constants}


def asked_for(words: str, runs: dict[str, Run]) -> Run:
    """The run that a refusal asks for: another figure of one there is, or one with fewer layers."""
    read = re.fullmatch(r"the (\w+) memory of run (\d+)", words)
    if read:
        return replace(runs[read.group(2)], name=words, figure=Figure(read.group(1)))
    cut = re.fullmatch(r"run (\d+) with layers (\d+)", words)
    assert cut, words
    return replace(unmeasured(words, layers=int(cut.group(2))), figure=runs[cut.group(1)].figure)


@pytest.fixture(scope="module")
def exact() -> Outcome:
    return found(measured(grid(), KNOWN))


def test_exact_readings_give_the_known_figures(exact: Outcome) -> None:
    made = exact.calibration.backends[BACKEND]
    known = KNOWN.backends[BACKEND]
    assert made.logit_bytes == known.logit_bytes
    assert made.activation_permille == pytest.approx(known.activation_permille, abs=3)
    assert made.reserved_permille["default"] == pytest.approx(known.reserved_permille["default"], abs=3)
    assert made.recompute_permille[Recompute.FULL] == pytest.approx(1700, abs=20)
    assert made.workspace_bytes == pytest.approx(known.workspace_bytes, abs=0.02 * GIB)
    assert made.runtime_bytes == pytest.approx(known.runtime_bytes, abs=0.02 * GIB)
    assert exact.fit.error_before_ppm > 50_000
    assert exact.fit.error_after_ppm < 1_000
    assert exact.fit.error_held_out_ppm < 5_000


def test_a_fit_says_where_it_came_from_and_touches_no_other_framework(exact: Outcome) -> None:
    made, fitted = exact.calibration, exact.fit
    assert made.version == CALIBRATION.version + 1
    assert made.fits == (fitted,)
    assert (fitted.base_digest, fitted.runs_digest) == (CALIBRATION.content_hash(), DIGEST)
    assert (fitted.runs, fitted.groups) == (18, 3)
    others = {name: backend for name, backend in made.backends.items() if name != BACKEND}
    assert others == {name: backend for name, backend in CALIBRATION.backends.items() if name != BACKEND}
    assert made.backends[BACKEND].states == CALIBRATION.backends[BACKEND].states


def test_every_run_has_its_error_before_after_and_held_out(exact: Outcome) -> None:
    assert len(exact.errors) == 18
    assert all(abs(error.after) < 5_000 for error in exact.errors)
    assert run_cells(exact.errors[0])[:2] == ["2-1", "2 layers"]
    assert "held out" in summary_lines(exact)[-1]
    wire = fit_json(exact)
    assert wire["runs"][0].keys() >= {"id", "errorBeforePpm", "errorAfterPpm", "errorHeldOutPpm"}


def test_equal_runs_give_equal_bytes_in_any_order(exact: Outcome) -> None:
    again = found(measured(grid(), KNOWN))
    assert again.calibration.canonical() == exact.calibration.canonical()


def test_one_bad_reading_does_not_lead_the_fit_astray() -> None:
    runs = measured(grid(), KNOWN, noise=(4_000, -3_000, 1_000, -2_000, 3_000))
    bad = replace(runs[0], name="bad", measured=2 * runs[0].measured)
    made = found((*runs, bad)).calibration.backends[BACKEND]
    assert made.activation_permille == pytest.approx(1400, rel=0.05)
    assert made.logit_bytes["plain"] in (10, 11, 12)


def test_figures_stay_within_what_is_physical() -> None:
    runs = measured(grid(), truth(activation_permille=9000))
    held = ("recomputePermille.full", "workspaceBytes", "runtimeBytes", "logitBytes.plain", "reservedPermille.default")
    assert after(found(runs, *held)) == {"activationPermille": 4000}


def test_what_no_run_depends_on_stays_as_it_is() -> None:
    runs = measured([run for run in grid() if run.figure is Figure.ALLOCATED], KNOWN)
    made = found(runs)
    assert made.untouched == (f"{BACKEND} reservedPermille.default", f"{BACKEND} runtimeBytes")
    assert made.calibration.backends[BACKEND].runtime_bytes == CALIBRATION.backends[BACKEND].runtime_bytes


def test_runs_of_one_kind_are_refused_with_the_run_that_would_tell() -> None:
    """Reserved and device figures of a single model: allocator and runtime move together."""
    runs = [unmeasured(f"r{n}", Figure.DEVICE, layers=16, micro_batch=1) for n in range(9)]
    with pytest.raises(IndistinguishableError) as refused:
        found(measured(runs, KNOWN))
    message = str(refused.value)
    assert refused.value.field in message
    assert "cannot be told from" in message
    assert "Would tell: " in message
    assert f"--hold {refused.value.field}" in message


def test_the_run_that_is_named_does_tell() -> None:
    runs = [unmeasured(f"{layers}", Figure.DEVICE, layers=layers) for layers in (31, 32, 33, 34)]
    at = truth(reserved_permille={"default": 1280}, runtime_bytes=3 * GIB // 2)
    held = ("activationPermille", "logitBytes.plain", "workspaceBytes")
    with pytest.raises(
        IndistinguishableError, match=r"reservedPermille.*runtimeBytes|runtimeBytes.*reserved"
    ) as refused:
        found(measured(runs, at), *held)
    asked = str(refused.value).partition("Would tell: ")[2].partition("; or")[0].split(", and ")
    runs += [asked_for(words, {run.name: run for run in runs}) for words in asked]
    assert after(found(measured(runs, at), *held))["reservedPermille.default"] == pytest.approx(1280, abs=3)


def test_too_few_runs_are_refused_with_how_many_it_takes() -> None:
    with pytest.raises(TooFewRunsError) as refused:
        found(measured(grid()[:3], KNOWN))
    assert refused.value.value == 3
    assert int(str(refused.value.nearest)) > 3


def test_a_fit_that_other_runs_do_not_confirm_is_refused() -> None:
    noise = (0, 0, 0, 0, 60_000, -60_000, 0, 0, -90_000, 90_000)
    with pytest.raises(NoBetterError, match="held out"):
        found(measured(grid(), CALIBRATION, noise))


def test_holding_everything_leaves_nothing_to_fit() -> None:
    runs = measured([run for run in grid() if run.figure is Figure.ALLOCATED], KNOWN)
    held = ("activationPermille", "recomputePermille.full", "logitBytes.plain", "workspaceBytes")
    with pytest.raises(InvalidInputError, match="no figure that could be fitted"):
        found(runs, *held)


@pytest.mark.parametrize("hold", ["nothing", "logitBytes.sharded"])
def test_a_figure_that_is_not_there_cannot_be_held(hold: str) -> None:
    with pytest.raises(InvalidInputError, match="activationPermille"):
        found(measured(grid(), KNOWN), hold)


def test_another_framework_is_refused_with_those_that_there_are() -> None:
    runs = measured(grid()[:1], KNOWN)
    with pytest.raises(InvalidInputError, match="megatron"):
        found((replace(runs[0], setting=replace(runs[0].setting, backend="jax")),))


def test_an_allocator_that_the_framework_has_no_figure_for_is_named_with_its_run() -> None:
    first, *others = measured(grid(), KNOWN)
    wrong = replace(first, setting=replace(first.setting, allocator="jemalloc"))
    with pytest.raises(InvalidInputError, match=r"run 2-1: allocator='jemalloc'.*default, expandable"):
        found((*others, wrong))
