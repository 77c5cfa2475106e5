"""The fit itself: which figures, their values, the error of every run before, after and held out. Pure."""

from typing import NamedTuple

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_operator.layers.strategy.fit.constants import Constant, changed, constants_of
from kuangchao_operator.layers.strategy.fit.problem import Problem
from kuangchao_operator.layers.strategy.fit.runs import Run, estimate
from kuangchao_operator.layers.strategy.fit.telling import check, moved
from kuangchao_operator.layers.strategy.footprint.calibration import Backend, Calibration, Fit, FittedConstant
from kuangchao_operator.layers.strategy.footprint.peaks import allocator_kind

MILLION = 1_000_000


class RunError(NamedTuple):
    """Relative errors of one run, in millionths, with sign: estimate above what was measured is positive."""

    run: Run
    before: int
    after: int
    held_out: int


class Outcome(NamedTuple):
    """A fit."""

    calibration: Calibration
    fit: Fit
    errors: tuple[RunError, ...]
    untouched: tuple[str, ...]
    """Figures that stay as they are because no run depends on them."""


class NoBetterError(InvalidInputError):
    """A fit that runs outside it do not confirm."""


def fit(runs: tuple[Run, ...], base: Calibration, runs_digest: str, hold: frozenset[str] = frozenset()) -> Outcome:
    """The base with the figures that the runs tell; version one higher.

    Raises TooFewRunsError and IndistinguishableError (`telling`), InvalidInputError for a framework that the base does
    not have, an allocator that the framework does not, or a held figure that there is not, NoBetterError where runs
    that a fit had not seen are estimated worse than before.
    """
    names = sorted({run.setting.backend for run in runs})
    if not names:
        raise InvalidInputError("runs", 0, "nothing to fit")
    calibration, constants, untouched, errors = base, [], [], []
    for name in names:
        if name not in base.backends:
            raise InvalidInputError("backend", name, "is not in the calibration", ", ".join(sorted(base.backends)))
        own = tuple(run for run in runs if run.setting.backend == name)
        _known_allocators(own, base.backends[name])
        found = _fit_one(own, base, name, hold)
        calibration = changed(calibration, name, found.constants, found.values)
        constants += _changes(found, base, name)
        untouched += [f"{name} {constant.name}" for constant in found.untouched]
        errors += found.errors
    made = _provenance(errors, constants, base, runs_digest)
    if made.error_held_out_ppm > made.error_before_ppm:
        raise NoBetterError(
            "runs",
            len(runs),
            f"do not confirm the fit: runs held out of it are off by {made.error_held_out_ppm / 10_000:.1f} % on"
            f" average, {made.error_before_ppm / 10_000:.1f} % before",
        )
    return Outcome(
        calibration=calibration.replace(version=base.version + 1, fits=(*base.fits, made)),
        fit=made,
        errors=tuple(errors),
        untouched=tuple(untouched),
    )


def _known_allocators(runs: tuple[Run, ...], backend: Backend) -> None:
    for run in runs:
        if allocator_kind(run.setting, backend) not in backend.reserved_permille:
            legal = ", ".join(sorted(backend.reserved_permille))
            raise InvalidInputError(f"run {run.name}: allocator", run.setting.allocator, "is not known", legal)


class _Fitted(NamedTuple):
    constants: tuple[Constant, ...]
    values: list[int]
    untouched: tuple[Constant, ...]
    errors: list[RunError]


def _fit_one(runs: tuple[Run, ...], base: Calibration, backend: str, hold: frozenset[str]) -> _Fitted:
    possible = constants_of(runs, base.backends[backend])
    unknown = sorted(hold - {constant.name for constant in possible})
    if unknown:
        raise InvalidInputError("hold", unknown[0], "is no figure of these runs", ", ".join(c.name for c in possible))
    wanted = tuple(constant for constant in possible if constant.name not in hold)
    found = moved(Problem(runs, base, backend, wanted))
    problem = Problem(runs, base, backend, found.fitted)
    check(problem, base, backend)
    values = problem.fitted(problem.start)
    after = changed(base, backend, found.fitted, values)
    held_out = _held_out(runs, base, backend, found.fitted)
    errors = [RunError(run, _error(run, base), _error(run, after), _error(run, held_out[run.group])) for run in runs]
    return _Fitted(found.fitted, values, found.untouched, errors)


def _held_out(
    runs: tuple[Run, ...], base: Calibration, backend: str, constants: tuple[Constant, ...]
) -> dict[str, Calibration]:
    """For each group the calibration that the others give; what they leave open stays as in the base."""
    found = {}
    for group in sorted({run.group for run in runs}):
        others = tuple(run for run in runs if run.group != group)
        problem = Problem(others, base, backend, constants)
        found[group] = changed(base, backend, constants, problem.fitted(problem.start)) if others else base
    return found


def _error(run: Run, calibration: Calibration) -> int:
    """Rounded half away from zero, in whole numbers."""
    difference = estimate(run, calibration) - run.measured
    size = (abs(difference) * MILLION + run.measured // 2) // run.measured
    return size if difference >= 0 else -size


def _changes(found: _Fitted, base: Calibration, backend: str) -> list[FittedConstant]:
    figures = base.backends[backend]
    return [
        FittedConstant(backend=backend, name=constant.name, before=constant.read(figures), after=value)
        for constant, value in zip(found.constants, found.values, strict=True)
    ]


def _provenance(errors: list[RunError], constants: list[FittedConstant], base: Calibration, runs_digest: str) -> Fit:
    return Fit(
        base_version=base.version,
        base_digest=base.content_hash(),
        runs_digest=runs_digest,
        runs=len(errors),
        groups=len({one.run.group for one in errors}),
        constants=tuple(constants),
        error_before_ppm=_mean([one.before for one in errors]),
        error_after_ppm=_mean([one.after for one in errors]),
        error_held_out_ppm=_mean([one.held_out for one in errors]),
    )


def _mean(errors: list[int]) -> int:
    return sum(abs(error) for error in errors) // len(errors)
