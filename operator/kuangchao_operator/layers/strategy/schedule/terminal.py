"""A step as rows of characters, one for each stage, and one for what it sends where that is visible. Pure."""

from collections.abc import Sequence

from kuangchao_operator.layers.strategy.schedule.cells import bounds, cells
from kuangchao_operator.layers.strategy.schedule.sample import spread
from kuangchao_operator.layers.strategy.schedule.simulation import Simulation
from kuangchao_operator.layers.strategy.schedule.timeline import PASSES, Activity, Lane, Span
from kuangchao_operator.layers.strategy.schedule.words import headline, notes
from kuangchao_operator.layers.strategy.shown import duration, percent

ROWS = 24
"""Stages that are shown."""
NARROWEST, WIDEST = 16, 160
"""Columns of the drawing itself."""
MINOR = (Lane.SEND_ON, Lane.SEND_BACK, Lane.REDUCE)

UNICODE = {
    Activity.FORWARD: "▒",
    Activity.BACKWARD: "█",
    Activity.WEIGHT: "░",
    Activity.ACTIVATIONS: "→",
    Activity.GRADIENTS: "←",
    Activity.REDUCTION: "≈",
    Activity.OPTIMIZER: "◆",
    None: "·",
}
ASCII = {
    Activity.FORWARD: "f",
    Activity.BACKWARD: "B",
    Activity.WEIGHT: "w",
    Activity.ACTIVATIONS: ">",
    Activity.GRADIENTS: "<",
    Activity.REDUCTION: "=",
    Activity.OPTIMIZER: "@",
    None: ".",
}


def render_terminal(step: Simulation, width: int = 80, *, plain: bool = False) -> str:
    """Lines of at most `width` columns (never fewer than some 30), without a trailing newline.

    A pass starts with the number of its micro-batch where there is room. `plain`: ASCII only.
    """
    marks = ASCII if plain else UNICODE
    stages = spread(step.timeline.stages, ROWS)
    label = len(f"stage {stages[-1]} 100.0 % ")
    columns = max(NARROWEST, min(WIDEST, width - label))
    by_stage: dict[int, list[Span]] = {stage: [] for stage in stages}
    for span in step.timeline.spans:
        if span.stage in by_stage:
            by_stage[span.stage].append(span)
    lines = [headline(step)]
    for stage, spans in by_stage.items():
        lines += _stage(step, stage, spans, marks, label, columns)
    lines.append(f"{'':{label}}{_axis(step, columns)}")
    lines.append(_legend(step, marks))
    coarse = columns < 2 * step.simulated * step.virtual
    return "\n".join([*lines, *notes(step, len(stages), coarse=coarse)])


def _stage(
    step: Simulation, stage: int, spans: Sequence[Span], marks: dict[Activity | None, str], label: int, columns: int
) -> list[str]:
    timeline = step.timeline
    share = percent(step.busy_ppm(stage))
    compute = [span for span in spans if span.lane is Lane.COMPUTE]
    name = f"stage {stage}"
    rows = [f"{name}{share:>{label - 1 - len(name)}} {_row(compute, marks, columns, timeline.stop)}"]
    minor = _row([span for span in spans if span.lane in MINOR], {**marks, None: " "}, columns, timeline.stop)
    if minor.strip():
        rows.append(f"{'':{label}}{minor}".rstrip())
    return rows


def _row(spans: Sequence[Span], marks: dict[Activity | None, str], columns: int, stop: int) -> str:
    text = [marks[activity] for activity in cells(spans, columns, max(1, stop))]
    for span in spans:
        place, number = bounds(span, columns, max(1, stop)), str(span.micro_batch)
        if span.activity in PASSES and len(place) > len(number):
            text[place.start : place.start + len(number)] = number
    return "".join(text)


def _axis(step: Simulation, columns: int) -> str:
    end = duration(step.timeline.stop) if step.timed else "end"
    return f"0{end:>{columns - 1}}"


def _legend(step: Simulation, marks: dict[Activity | None, str]) -> str:
    used = {span.activity for span in step.timeline.spans}
    named = [f"{marks[activity]} {activity}" for activity in Activity if activity in used]
    return "  ".join([*named, f"{marks[None]} idle", "%: busy"])
