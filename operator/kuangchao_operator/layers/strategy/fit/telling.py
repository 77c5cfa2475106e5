"""Whether measured runs can tell the figures apart that are to be fitted, and which run would. Pure.

A figure's uncertainty is that of least squares (Gauss-Markov): the noise of a reading over the length of what no other
figure explains of its column of derivatives. Where it is more than TOLERABLE the fit is refused, never guessed.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Recompute, TransformerModel
from kuangchao_operator.layers.strategy.fit.constants import Constant
from kuangchao_operator.layers.strategy.fit.problem import Problem
from kuangchao_operator.layers.strategy.fit.runs import Figure, Run
from kuangchao_operator.layers.strategy.fit.solve import Vector, dot, jacobian, unexplained
from kuangchao_operator.layers.strategy.footprint.calibration import Calibration

NOISE = 0.01
"""Of a reading, relative: equal runs differ by about so much."""
TOLERABLE = 0.25
"""In scaled units: a quarter of a factor, 256 MiB of a fixed part, 2.5 bytes of a logit."""
_EXAMPLES = 6
"""Runs of which variations are tried."""
_MOST = 8
"""Further runs that a refusal asks for."""


class IndistinguishableError(InvalidInputError):
    """Two figures that the runs given cannot tell apart."""


class TooFewRunsError(InvalidInputError):
    """Fewer runs than a fit of so many figures needs."""


class Moved(NamedTuple):
    """Figures that the runs move, and those that they hardly touch."""

    fitted: tuple[Constant, ...]
    untouched: tuple[Constant, ...]


def moved(problem: Problem) -> Moved:
    """Which figures the runs would tell if each were the only one."""
    touched = [_certain(dot(column, column)) for column in _columns(problem)]
    pairs = list(zip(problem.constants, touched, strict=True))
    return Moved(tuple(c for c, told in pairs if told), tuple(c for c, told in pairs if not told))


def check(problem: Problem, base: Calibration, backend: str) -> None:
    """Raises TooFewRunsError and IndistinguishableError, and InvalidInputError where nothing is left to fit."""
    if not problem.constants:
        raise InvalidInputError(f"runs of {backend}", len(problem.runs), "depend on no figure that could be fitted")
    needed = len(problem.constants) + 2
    if len(problem.runs) < needed:
        names = ", ".join(constant.name for constant in problem.constants)
        raise TooFewRunsError(
            f"runs of {backend}", len(problem.runs), f"are too few to fit {names} and to check the fit", needed
        )
    columns = _columns(problem)
    for number, constant in enumerate(problem.constants):
        if not _certain(_own(number, columns)):
            other = problem.constants[_likest(number, columns)].name
            raise IndistinguishableError(
                constant.name,
                f"{len(problem.runs)} runs of {backend}",
                f"cannot be told from {other}: both change these runs alike. {_remedy(problem, base, backend, number)}",
            )


def _columns(problem: Problem) -> list[Vector]:
    place = problem.start
    upper = [constant.upper / constant.scale for constant in problem.constants]
    return jacobian(problem.residuals, place, problem.residuals(place), upper)


def _certain(squared_length: float) -> bool:
    return squared_length * TOLERABLE * TOLERABLE >= NOISE * NOISE


def _likest(number: int, columns: list[Vector]) -> int:
    def likeness(other: int) -> float:
        along = dot(columns[number], columns[other])
        return along * along / (dot(columns[other], columns[other]) or 1.0)

    return max((n for n in range(len(columns)) if n != number), key=likeness)


def _remedy(problem: Problem, base: Calibration, backend: str, number: int) -> str:
    """The fewest runs more, made from those given, that would tell: found greedily."""
    name, columns = problem.constants[number].name, _columns(problem)
    words: list[str] = []
    others = [
        (text, _columns(Problem((run,), base, backend, problem.constants))) for text, run in _variations(problem.runs)
    ]
    while others and not _all_certain(columns) and len(words) < _MOST:
        text, row = max(others, key=lambda one: _told(_longer(columns, one[1])))
        if _told(_longer(columns, row)) <= _told(columns):
            break
        columns = _longer(columns, row)
        others.remove((text, row))
        words.append(text)
    if not _all_certain(columns):
        return f"No few runs like these would tell; keep one of them as it is: --hold {name}"
    return f"Would tell: {', and '.join(words)}; or keep one of them as it is: --hold {name}"


def _longer(columns: list[Vector], row: list[Vector]) -> list[Vector]:
    return [column + more for column, more in zip(columns, row, strict=True)]


def _own(number: int, columns: list[Vector]) -> float:
    return unexplained(columns[number], columns[:number] + columns[number + 1 :])


def _all_certain(columns: list[Vector]) -> bool:
    return all(_certain(_own(number, columns)) for number in range(len(columns)))


def _told(columns: list[Vector]) -> float:
    """How many figures are told, each that is not yet by how far it is."""
    enough = (NOISE / TOLERABLE) * (NOISE / TOLERABLE)
    return sum(min(1.0, _own(number, columns) / enough) for number in range(len(columns)))


def _variations(runs: tuple[Run, ...]) -> Iterator[tuple[str, Run]]:
    for run in runs[:_EXAMPLES]:
        setting = run.setting
        for figure in Figure:
            if figure is not run.figure:
                yield f"the {figure.value} memory of run {run.name}", replace(run, figure=figure)
        more = 4 * setting.micro_batch
        yield f"run {run.name} with micro-batch {more}", _changed(run, micro_batch=more)
        for mode in (Recompute.NONE, Recompute.FULL):
            if setting.recompute is not mode:
                yield f"run {run.name} with recompute {mode.value}", _changed(run, recompute=mode)
        yield from _smaller(run)


def _smaller(run: Run) -> Iterator[tuple[str, Run]]:
    """Other models: of half the layers, of one layer for each piece of the pipeline, and with other vocabularies."""
    model, pieces = run.setting.model, run.setting.layout.pipeline * run.setting.layout.virtual
    cuts = {pieces, model.layers // 2 // pieces * pieces} if run.setting.layout.stage_layers is None else set()
    for layers in sorted(cuts - {0, model.layers}):
        yield f"run {run.name} with layers {layers}", _model(run, model.replace(layers=layers))
    for vocab in (4 * model.vocab, max(1, model.vocab // 4)):
        yield f"run {run.name} with vocab {vocab}", _model(run, model.replace(vocab=vocab))


def _model(run: Run, model: TransformerModel) -> Run:
    return _changed(run, model=model)


def _changed(run: Run, **changes: object) -> Run:
    return replace(run, setting=replace(run.setting, **changes))  # type: ignore[arg-type]
