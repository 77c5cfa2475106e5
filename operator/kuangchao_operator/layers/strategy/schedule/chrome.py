"""A step in the Trace Event Format, which Perfetto and chrome://tracing open: a process for each stage. Pure.

Source: "Trace Event Format", Google, 2016: complete events (X) with microseconds, metadata events (M).
"""

import json
from typing import Any

from kuangchao_operator.layers.strategy.schedule.sample import spread
from kuangchao_operator.layers.strategy.schedule.simulation import Simulation
from kuangchao_operator.layers.strategy.schedule.timeline import Lane, Span
from kuangchao_operator.layers.strategy.schedule.words import headline, notes

EVENTS = 100_000
"""Events that are written: stages are left out beyond it."""


def render_chrome(step: Simulation) -> str:
    """The trace as JSON text, without a trailing newline."""
    timeline = step.timeline
    stages = spread(timeline.stages, max(2, EVENTS * timeline.stages // max(1, len(timeline.spans))))
    shown = set(stages)
    events = [event for stage in stages for event in _names(stage)]
    events += [_event(span) for span in timeline.spans if span.stage in shown]
    trace = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"summary": headline(step), "notes": " ".join(notes(step, len(stages)))},
    }
    return json.dumps(trace, separators=(",", ":"))


def _names(stage: int) -> list[dict[str, Any]]:
    named = [
        _meta("process_name", stage, {"name": f"stage {stage}"}),
        _meta("process_sort_index", stage, {"sort_index": stage}),
    ]
    for number, lane in enumerate(Lane):
        named += [
            _meta("thread_name", stage, {"name": str(lane)}, number),
            _meta("thread_sort_index", stage, {"sort_index": number}, number),
        ]
    return named


def _meta(name: str, stage: int, args: dict[str, Any], lane: int = 0) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": stage, "tid": lane, "args": args}


_LANES = {lane: number for number, lane in enumerate(Lane)}


def _event(span: Span) -> dict[str, Any]:
    once = span.micro_batch < 0
    return {
        "name": str(span.activity) if once else f"{span.activity} {span.micro_batch}",
        "cat": str(span.activity),
        "ph": "X",
        "ts": span.start,
        "dur": span.stop - span.start,
        "pid": span.stage,
        "tid": _LANES[span.lane],
        "args": {} if once else {"microBatch": span.micro_batch, "chunk": span.chunk},
    }
