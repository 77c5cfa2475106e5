"""What step times and choices come to, by source and by group, with the targets. Pure."""

import statistics
from collections import defaultdict
from typing import Any

from bench.figures import Bound, Figure
from bench.planner.choice import Candidate, Group, groups
from bench.planner.rows import Row
from bench.planner.timing import Timed

RANKING = "VIA-Research/vTrain"
"""The source whose plans are alternatives for the same job: choices are judged on it."""
MULTI_NODE = f"{RANKING}:data/ground_truth_multi.csv"
FITTED_MODEL = "GPT-3.6B"
"""The model in MULTI_NODE whose plans figures were fitted to; plans of the others are held out."""
FITTED, HELD_OUT = "fitted", "held out"

Steps = list[tuple[Row, Timed]]


def step_summary(steps: Steps) -> dict[str, Any]:
    """Errors by source, every group of alternatives, and the targets."""
    ranked = alternatives(steps)
    return {
        "stepTime": {
            "sources": {source: _errors(errors) for source, errors in sorted(_by_source(steps).items())},
            "impossible": [row.id for row, step in steps if step.impossible],
        },
        "choice": [_record(group) for group in ranked],
        "targets": [figure.record() for figure in targets(steps)],
    }


def alternatives(steps: Steps) -> tuple[Group, ...]:
    """Groups of plans for the same job."""
    return groups(
        Candidate(row, step.measured, step.seconds)
        for row, step in steps
        if row.text("source").startswith(RANKING) and step.measured is not None
    )


def targets(steps: Steps) -> list[Figure]:
    """Each with what it should be; those for which a file has no rows are left out."""
    ranked = alternatives(steps)
    ranks = [group.spearman for group in ranked if group.spearman is not None]
    gains = [group.gain for group in ranked if group.gain is not None]
    found = []
    errors = _by_source(steps)
    for part in (FITTED, HELD_OUT):
        sizes = [abs(error) for error in errors.get(_named(MULTI_NODE, part), ())]
        if sizes:
            name, mean = f"mean absolute error, multi-node, {part}", statistics.fmean(sizes)
            found.append(Figure("step time", name, mean, target=0.20, note="stretch 0.147"))
    if ranked:
        worst = max(group.ratio for group in ranked)
        found.append(Figure("choice", "pick / best, worst group", worst, target=1.10, note="stretch 1.03"))
    if ranks:
        found.append(Figure("choice", "Spearman, worst group", min(ranks), bound=Bound.AT_LEAST, target=0.7))
    if gains:
        mean = statistics.fmean(gains)
        found.append(Figure("choice", "default / pick, mean", mean, bound=Bound.AT_LEAST, target=1.08))
        found.append(Figure("choice", "default / pick, worst", min(gains), bound=Bound.AT_LEAST, target=0.95))
    return found


def _by_source(steps: Steps) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for row, step in steps:
        error = step.error
        if error is not None:
            found[_source(row)].append(error)
    return found


def _source(row: Row) -> str:
    """Rows that are reported together: what was fitted and what was held out are not."""
    name = row.text("source").partition("/test_cases/")[0]
    return _named(name, FITTED if row.text("model") == FITTED_MODEL else HELD_OUT) if name == MULTI_NODE else name


def _named(source: str, part: str) -> str:
    return f"{source}, {part}"


def _errors(errors: list[float]) -> dict[str, Any]:
    sizes = [abs(error) for error in errors]
    return {
        "rows": len(errors),
        "meanAbsolute": round(statistics.fmean(sizes), 4),
        "mean": round(statistics.fmean(errors), 4),
        "worst": round(max(sizes), 4),
    }


def _record(group: Group) -> dict[str, Any]:
    return {
        "group": group.name,
        "plans": len(group.plans),
        "pick": group.pick.row.id,
        "ratio": round(group.ratio, 4),
        "spearman": None if group.spearman is None else round(group.spearman, 4),
        "default": None if group.default is None else group.default.row.id,
        "gain": None if group.gain is None else round(group.gain, 4),
    }
