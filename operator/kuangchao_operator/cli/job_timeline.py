"""The reconstruction of a job as entries in order, for programs and as a table for people. Judges nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from kuangchao_operator.cli.output import table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kuangchao_operator.audit.joblogs import JobLogs, Segment
    from kuangchao_operator.audit.jobtrail import Call, JobTrail

COLUMNS = ("time", "attempt", "who", "what", "token", "result", "detail")
Entry = dict[str, Any]


def timeline(found: JobTrail, logs: JobLogs, *, steps: bool) -> Iterator[Entry]:
    """Calls in the order of the store; before each commit what it has pinned, after the last one what is lost."""
    pinned: dict[int, list[Segment]] = {}
    lost: dict[int, list[Segment]] = {}
    for segment in logs.segments:
        if segment.commit is not None:
            pinned.setdefault(segment.commit.seq, []).append(segment)
        else:
            lost.setdefault(segment.attempt, []).append(segment)
    for call in found.calls:
        for attempt in sorted(a for a in lost if 0 < a < call.began.attempt):
            yield from _segments(lost.pop(attempt), steps=steps)
        yield from _segments(pinned.pop(call.seq, []), steps=steps)
        yield call_entry(call)
    for attempt in sorted(lost):
        yield from _segments(lost[attempt], steps=steps)


def call_entry(call: Call) -> Entry:
    """A control call, a read, a denial or a count, as one entry."""
    record = call.last
    return {
        "kind": "call",
        "seq": call.seq,
        "time": _text(call.began.ts),
        "attempt": call.began.attempt,
        "operation": record.op,
        "subject": record.subject,
        "token": record.jti,
        "result": call.result,
        "reason": record.reason if call.ended is not None else "",
        "detail": record.detail,
        "count": record.count,
        "process": record.process,
    }


def _segments(segments: list[Segment], *, steps: bool) -> Iterator[Entry]:
    for segment in segments:
        if steps:
            yield from _lines(segment)
        yield segment_entry(segment)


def segment_entry(segment: Segment) -> Entry:
    """Lines of one log that one commit has pinned, or none."""
    commit = segment.commit
    return {
        "kind": "steps" if commit is not None else "lost",
        "attempt": segment.attempt,
        "rank": segment.rank,
        "firstLine": segment.first,
        "lastLine": segment.last,
        "began": _moment(segment.began),
        "ended": _moment(segment.ended),
        "firstStep": segment.first_step,
        "lastStep": segment.last_step,
        "operations": dict(segment.operations),
        "denied": segment.denied,
        "grace": segment.grace,
        "pinnedBy": {"seq": commit.seq, "step": commit.step} if commit is not None else None,
        "bound": segment.bound,
        "fault": segment.fault,
    }


def _lines(segment: Segment) -> Iterator[Entry]:
    for line, step in segment.lines:
        yield {
            "kind": "step",
            "attempt": segment.attempt,
            "rank": segment.rank,
            "line": line.n,
            "time": _moment(line.t),
            "operation": line.op,
            "subject": line.sub,
            "step": step,
            "denied": line.deny,
            "grace": line.grace,
        }


def _moment(nanoseconds: int) -> str | None:
    return _text(datetime.fromtimestamp(nanoseconds / 1e9, UTC)) if nanoseconds else None


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# ---- for people


def show(answer: dict[str, Any]) -> None:
    """Print a reconstruction: the timeline on stdout, what is wrong with it on stderr."""
    print(f"{answer['job']} uid {answer['uid']}")
    print(table(COLUMNS, [_ROWS[entry["kind"]](entry) for entry in answer["timeline"]]))
    for note in answer["notes"]:
        typer.echo(f"note: {note}", err=True)
    for other in answer["others"]:
        typer.echo(f"note: another job had this name, --uid {other}", err=True)
    for problem in answer["problems"]:
        typer.echo(f"problem: {problem}", err=True)


def _call_row(entry: Entry) -> tuple[str, ...]:
    counted = f"{entry['count']} calls" if entry["count"] > 1 else ""
    detail = " ".join(filter(None, (entry["reason"], entry["detail"], counted)))
    who = f"{entry['subject']} ({entry['process']})" if entry["process"].startswith("rank/") else entry["subject"]
    return (entry["time"], str(entry["attempt"]), who, entry["operation"], entry["token"] or "-",
            entry["result"], detail or "-")  # fmt: skip


def _segment_row(entry: Entry) -> tuple[str, ...]:
    pinned = entry["pinnedBy"]
    # what a finished rank does after its last save is in no checkpoint, and nobody misses it
    result = f"pinned by step {pinned['step']}" if pinned else "lost" if entry["lastStep"] else "not pinned"
    return (entry["began"] or "-", str(entry["attempt"]), f"rank {entry['rank']}", _what(entry), "-", result,
            _about_lines(entry))  # fmt: skip


def _what(entry: Entry) -> str:
    if entry["firstStep"] is None:
        return f"{sum(entry['operations'].values())} calls"
    first, last = entry["firstStep"], entry["lastStep"]
    return f"step {first}" if first == last else f"steps {first}-{last}"


def _about_lines(entry: Entry) -> str:
    calls = ", ".join(f"{op} {count}" for op, count in sorted(entry["operations"].items()))
    parts = [f"lines {entry['firstLine']}-{entry['lastLine']}: {calls}" if calls else ""]
    parts += [f"{entry['denied']} denied" if entry["denied"] else ""]
    parts += [f"{entry['grace']} in grace" if entry["grace"] else ""]
    if entry["pinnedBy"] is None:
        bound = entry["bound"]
        parts += ["pinned by nothing", f"checkpoints are {bound} steps apart at most" if bound else "", entry["fault"]]
    return "; ".join(filter(None, parts))


def _line_row(entry: Entry) -> tuple[str, ...]:
    step = f"step {entry['step']}" if entry["step"] is not None else ""
    marks = [f"line {entry['line']}", step, "in grace" if entry["grace"] else ""]
    return (entry["time"], str(entry["attempt"]), f"rank {entry['rank']}", entry["operation"], "-",
            f"deny {entry['denied']}" if entry["denied"] else "allow", " ".join(filter(None, marks)))  # fmt: skip


_ROWS = {"call": _call_row, "steps": _segment_row, "lost": _segment_row, "step": _line_row}
