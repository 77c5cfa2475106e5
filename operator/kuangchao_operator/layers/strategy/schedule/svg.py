"""A step as an SVG: one file, no script, nothing loaded, its text can be selected and read aloud. Pure."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from kuangchao_operator.layers.strategy.schedule.cells import cells
from kuangchao_operator.layers.strategy.schedule.sample import spread
from kuangchao_operator.layers.strategy.schedule.simulation import Simulation
from kuangchao_operator.layers.strategy.schedule.timeline import PASSES, Activity, Lane, Span
from kuangchao_operator.layers.strategy.schedule.words import headline, notes
from kuangchao_operator.layers.strategy.shown import duration

ROWS = 32
SPANS = 6_000
"""A drawing of more spans than this has each lane cut into cells."""
CELLS = 400
LEFT, WIDTH, LINE = 76, 1100, 18
HEIGHTS = {Lane.COMPUTE: 20, Lane.SEND_ON: 6, Lane.SEND_BACK: 6, Lane.REDUCE: 6}
CLASSES = {
    Activity.FORWARD: "f",
    Activity.BACKWARD: "b",
    Activity.WEIGHT: "w",
    Activity.ACTIVATIONS: "s",
    Activity.GRADIENTS: "g",
    Activity.REDUCTION: "r",
    Activity.OPTIMIZER: "o",
}
STYLE = """
text{font:12px system-ui,sans-serif;fill:#1c1c1c}.n{font-size:10px;fill:#fff;text-anchor:middle;pointer-events:none}
.d{fill:#111}.bg{fill:#fff}.idle{fill:#ececec}.tick{stroke:#999}
.f,.b,.w{stroke:#fff;stroke-width:.5}.f{fill:#8ecae6}.b{fill:#1d5b79}.w{fill:#5f8f3d}.s{fill:#e09f3e}.g{fill:#9e2a2b}.r{fill:#7b4ea3}.o{fill:#444}
@media(prefers-color-scheme:dark){text{fill:#eee}.bg{fill:#161616}.idle{fill:#2b2b2b}.o{fill:#bbb}.d{fill:#111}}
"""


def render_svg(step: Simulation) -> str:
    """The drawing as text, with a trailing newline."""
    stages = spread(step.timeline.stages, ROWS)
    shown: dict[int, dict[Lane, list[Span]]] = {stage: {lane: [] for lane in Lane} for stage in stages}
    for span in step.timeline.spans:
        if span.stage in shown and span.stop > span.start:
            shown[span.stage][span.lane].append(span)
    coarse = sum(len(spans) for lanes in shown.values() for spans in lanes.values()) > SPANS
    body, top = [], 2 * LINE
    for stage, lanes in shown.items():
        body.append(_text(4, top + 14, f"stage {stage}"))
        for lane, spans in lanes.items():
            if spans or lane is Lane.COMPUTE:
                height = HEIGHTS[lane]
                body += _ground(top, height) if lane is Lane.COMPUTE else ()
                body += (_coarse if coarse else _exact)(spans, top, height, step.timeline.stop)
                top += height + 1
        top += 5
    below = _below(step, top + LINE, notes(step, len(stages), coarse=coarse))
    height = top + (len(below) + 1) * LINE
    return _document(headline(step), height, [*body, *below])


def _document(title: str, height: int, body: Sequence[str]) -> str:
    width = LEFT + WIDTH + 10
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{escape(title)}">'
    )
    ground = f'<rect class="bg" width="{width}" height="{height}"/>'
    return "\n".join(
        [head, f"<title>{escape(title)}</title><style>{STYLE}</style>", ground, _text(4, 20, title), *body, "</svg>\n"]
    )


def _ground(top: int, height: int) -> tuple[str]:
    """What is seen where a stage is idle."""
    return (f'<rect class="idle" x="{LEFT}" y="{top}" width="{WIDTH}" height="{height}"/>',)


def _exact(spans: Sequence[Span], top: int, height: int, stop: int) -> Iterator[str]:
    for span in spans:
        left, right = _x(span.start, stop), _x(span.stop, stop)
        yield (
            f'<rect class="{CLASSES[span.activity]}" x="{left:.1f}" y="{top}" width="{right - left:.1f}"'
            f' height="{height}"><title>{_tip(span)}</title></rect>'
        )
        number = str(span.micro_batch)
        if span.activity in PASSES and right - left > 7 * len(number) + 2:
            dark = " d" if span.activity is Activity.FORWARD else ""
            yield f'<text class="n{dark}" x="{(left + right) / 2:.1f}" y="{top + 14}">{number}</text>'


def _coarse(spans: Sequence[Span], top: int, height: int, stop: int) -> Iterator[str]:
    place = 0
    for activity, run in groupby(cells(spans, CELLS, stop)):
        length = len(list(run))
        if activity is not None:
            left, width = LEFT + place * WIDTH / CELLS, length * WIDTH / CELLS
            yield f'<rect class="{CLASSES[activity]}" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{height}"/>'
        place += length


def _below(step: Simulation, top: int, said: Sequence[str]) -> list[str]:
    """Axis, legend and notes, a line each."""
    end = duration(step.timeline.stop) if step.timed else "end"
    axis = _text(LEFT, top, "0") + f'<text x="{LEFT + WIDTH}" y="{top}" text-anchor="end">{end}</text>'
    used = {span.activity for span in step.timeline.spans}
    legend, left = [], LEFT
    for activity in Activity:
        if activity in used:
            y = top + LINE
            legend.append(f'<rect class="{CLASSES[activity]}" x="{left}" y="{y - 10}" width="12" height="12"/>')
            legend.append(_text(left + 16, y, str(activity)))
            left += 40 + 7 * len(activity)
    return [axis, "".join(legend), *(_text(LEFT, top + (n + 2) * LINE, note) for n, note in enumerate(said))]


def _x(time: int, stop: int) -> float:
    return LEFT + time * WIDTH / stop


def _tip(span: Span) -> str:
    batch = f" of micro-batch {span.micro_batch}, chunk {span.chunk}" if span.micro_batch >= 0 else ""
    return f"{span.activity}{batch}: {span.start} to {span.stop} us"


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:g}" y="{y:g}">{escape(text)}</text>'
