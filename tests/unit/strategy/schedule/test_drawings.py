"""Drawings of a step: for terminals, as SVG, as a trace; all of them bounded, and saying what they leave out."""

import json
import xml.etree.ElementTree as ET
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from kuangchao_contracts.parallel import Schedule
from kuangchao_operator.layers.strategy.schedule import chrome
from kuangchao_operator.layers.strategy.schedule.chrome import render_chrome
from kuangchao_operator.layers.strategy.schedule.run import ChunkTime, Tail
from kuangchao_operator.layers.strategy.schedule.simulation import Simulation, simulate
from kuangchao_operator.layers.strategy.schedule.svg import CELLS, ROWS, render_svg
from kuangchao_operator.layers.strategy.schedule.terminal import render_terminal

SVG = "{http://www.w3.org/2000/svg}"


def small() -> Simulation:
    """Two stages, two micro-batches, 5 ms a column at 60 columns."""
    time = ChunkTime(forward=20_000, backward=20_000, weight=20_000, send=10_000)
    return simulate(Schedule.GPIPE, 2, 1, 2, [[time]] * 2, tails=[Tail(10_000, 10_000)] * 2)


def large() -> Simulation:
    """More stages and micro-batches than anybody can look at."""
    return simulate(Schedule.ONE_F_ONE_B, 40, 1, 2000, [[ChunkTime(900, 800, 700, 50)]] * 40, limit=1)


def test_a_small_step_in_unicode() -> None:
    assert render_terminal(small(), 60).splitlines() == [
        "gpipe: 2 stages, 2 micro-batches; step 220 ms, bubble 40.0 %",
        "stage 0  60.0 % 0▒▒▒1▒▒▒················0███████1███████··◆◆",
        "                    →→  →→                              ≈≈",
        "stage 1  60.0 % ······0▒▒▒1▒▒▒0███████1███████··◆◆··········",
        "                                      ←←      ≈≈",
        "                0                                     220 ms",
        "▒ forward  █ backward  → activations  ← gradients  ≈ gradient reduction  ◆ optimizer  · idle  %: busy",
    ]


def test_a_small_step_in_ascii() -> None:
    drawn = render_terminal(small(), 60, plain=True)
    assert drawn.isascii()
    assert drawn.splitlines()[1] == "stage 0  60.0 % 0fff1fff................0BBBBBBB1BBBBBBB..@@"


@pytest.mark.parametrize("width", [20, 47, 80, 300])
@pytest.mark.parametrize("step", [small(), large()], ids=["small", "large"])
def test_rows_fit_the_terminal(width: int, step: Simulation) -> None:
    rows = [line for line in render_terminal(step, width).splitlines() if line.startswith(("stage", " "))]
    assert max(map(len, rows)) <= max(width, 16 + len("stage 39 100.0 % "))
    assert len(rows) < 60


def test_large_steps_say_what_is_left_out() -> None:
    step = large()
    for text in (render_terminal(step, 100), render_svg(step)):
        assert "Run and drawn with 160 of 2000 micro-batches" in text
        assert "A column shows what takes most of its time." in text
    assert "24 of 40 stages are shown" in render_terminal(step, 100)
    assert "32 of 40 stages are shown" in render_svg(step)


def test_without_times_no_time_is_shown() -> None:
    step = simulate(Schedule.ONE_F_ONE_B, 1, 1, 4)
    drawn = render_terminal(step, 60)
    assert drawn.splitlines()[0] == "1 stage, 4 micro-batches; bubble 0.0 %"
    assert "No time is known" in drawn
    assert " ms" not in drawn + render_svg(step).partition("</style>")[2]


def test_svg_stands_alone_and_its_text_is_text() -> None:
    root = ET.fromstring(render_svg(small()))
    tags = {element.tag for element in root.iter()}
    assert tags == {SVG + name for name in ("svg", "title", "style", "rect", "text")}
    names = {name for element in root.iter() for name in element.attrib}
    assert not {name for name in names if name.startswith("on") or "href" in name}
    texts = [element.text for element in root.iter(SVG + "text")]
    assert {"stage 0", "stage 1", "forward", "backward", "activations", "optimizer", "0", "1"} <= set(texts)
    tips = [title.text for title in root.iter(SVG + "title")]
    assert "forward of micro-batch 1, chunk 0: 20000 to 40000 us" in tips


def test_svg_places_passes_by_time() -> None:
    root = ET.fromstring(render_svg(small()))
    forward = [rect for rect in root.iter(SVG + "rect") if rect.get("class") == "f" and rect.get("height") == "20"]
    left = [(float(rect.get("x", 0)) - 76) / 1100 * 220 for rect in forward]
    assert left == pytest.approx([0, 20, 30, 50], abs=0.1)


def test_svg_of_a_large_step_is_bounded() -> None:
    step = simulate(Schedule.ONE_F_ONE_B, 33, 1, 300, [[ChunkTime(900, 800, 700, 50)]] * 33)
    drawn = render_svg(step)
    assert drawn.count("<rect") <= ROWS * 4 * (CELLS + 1)
    assert "<title>forward" not in drawn
    assert "A column shows" not in render_svg(small()) + render_terminal(small(), 60)


class Args(BaseModel):
    """Arguments of an event of ours."""

    model_config = ConfigDict(extra="forbid")
    name: str | None = None
    sort_index: int | None = None
    microBatch: int | None = None  # noqa: N815 - as it is written
    chunk: int | None = None


class Metadata(BaseModel):
    """ "M" of the Trace Event Format."""

    model_config = ConfigDict(extra="forbid", strict=True)
    ph: Literal["M"]
    name: Literal["process_name", "process_sort_index", "thread_name", "thread_sort_index"]
    pid: int
    tid: int
    args: Args


class Complete(BaseModel):
    """ "X" of the Trace Event Format: microseconds."""

    model_config = ConfigDict(extra="forbid", strict=True)
    ph: Literal["X"]
    name: str
    cat: str
    ts: int = Field(ge=0)
    dur: int = Field(ge=0)
    pid: int
    tid: int
    args: Args


class Trace(BaseModel):
    """The JSON object format."""

    model_config = ConfigDict(extra="forbid", strict=True)
    traceEvents: list[Metadata | Complete]  # noqa: N815 - as it is written
    displayTimeUnit: Literal["ms", "ns"]  # noqa: N815 - as it is written
    otherData: dict[str, str]  # noqa: N815 - as it is written


def trace(step: Simulation) -> Trace:
    """The trace, read as its format demands."""
    return TypeAdapter(Trace).validate_json(render_chrome(step))


def test_a_trace_has_every_span_and_names_every_lane() -> None:
    step = small()
    events = trace(step).traceEvents
    spans = [event for event in events if isinstance(event, Complete)]
    assert len(spans) == len(step.timeline.spans)
    first = spans[0]
    assert (first.name, first.ts, first.dur, first.pid) == ("forward 0", 0, 20_000, 0)
    named = {(e.pid, e.tid) for e in events if isinstance(e, Metadata) and e.name == "thread_name"}
    assert {(span.pid, span.tid) for span in spans} <= named
    assert max(span.ts + span.dur for span in spans) == step.step_us


def test_no_two_spans_of_a_lane_overlap_in_a_trace() -> None:
    step = simulate(Schedule.ZERO_BUBBLE_V, 4, 2, 9, [[ChunkTime(9, 8, 7, 3)] * 2] * 4, tails=[Tail(5, 5)] * 4)
    rows: dict[tuple[int, int], int] = {}
    for event in trace(step).traceEvents:
        if isinstance(event, Complete):
            assert event.ts >= rows.get((event.pid, event.tid), 0)
            rows[event.pid, event.tid] = event.ts + event.dur


def test_a_trace_of_a_large_step_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome, "EVENTS", 9_000)
    step = large()
    found = json.loads(render_chrome(step))
    assert sum(event["ph"] == "X" for event in found["traceEvents"]) <= 9_000
    assert "stages are shown" in found["otherData"]["notes"]
