"""A discrete-event run of one step: every pass and transfer starts as soon as all that it waits for is over. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from kuangchao_operator.layers.strategy.schedule.events import Message, Work
from kuangchao_operator.layers.strategy.schedule.passes import Kind, Orders, Placement
from kuangchao_operator.layers.strategy.schedule.timeline import Activity, Lane, Span, Timeline
from kuangchao_operator.layers.strategy.schedule.transport import Program, Transport, program


class ChunkTime(NamedTuple):
    """Microseconds of one micro-batch in one chunk of a stage."""

    forward: int
    backward: int
    """Gradients of the inputs."""
    weight: int
    """Gradients of the weights: part of the backward pass where the schedule has no passes for them."""
    send: int = 0
    """One hidden state from this chunk to the next piece of the model, and its gradient back."""


class Tail(NamedTuple):
    """Microseconds at the end of a step on a stage: what of the gradient reduction no pass hides, then the update."""

    reduction: int = 0
    optimizer: int = 0


Times = Sequence[Sequence[ChunkTime]]
"""By stage, then chunk."""


def run(
    orders: Orders,
    placement: Placement,
    times: Times,
    *,
    transport: Transport = Transport.EAGER,
    tails: Sequence[Tail] = (),
) -> Timeline:
    """One step of `orders`. `tails`: by stage, or empty for none. Raises DeadlockError where it would never end."""
    steps = program(orders, placement, transport)
    lasts = _durations(steps, placement, times, splits=any(s.kind is Kind.WEIGHT for row in orders for s in row))
    starts = [0] * len(lasts)
    for event in steps.order:
        stop = starts[event] + lasts[event]
        for then in steps.after[event]:
            starts[then] = max(starts[then], stop)
    return _timeline(len(orders), _spans(steps, placement, starts, lasts), tails)


def _durations(steps: Program, placement: Placement, times: Times, *, splits: bool) -> list[int]:
    passes = [[_passes(chunk, splits=splits) for chunk in stage] for stage in times]
    sends = [times[placement.stage(piece)][piece // placement.pipeline].send for piece in range(placement.pieces)]
    found = []
    for event in steps.events:
        if isinstance(event, Work):
            found.append(passes[event.stage][event.step.chunk][event.step.kind])
        else:
            found.append(sends[event.piece if event.kind is Kind.FORWARD else event.piece - 1])
    return found


def _passes(chunk: ChunkTime, *, splits: bool) -> dict[Kind, int]:
    backward = chunk.backward if splits else chunk.backward + chunk.weight
    return {Kind.FORWARD: chunk.forward, Kind.BACKWARD: backward, Kind.WEIGHT: chunk.weight}


_ACTIVITY = {Kind.FORWARD: Activity.FORWARD, Kind.BACKWARD: Activity.BACKWARD, Kind.WEIGHT: Activity.WEIGHT}


def _spans(steps: Program, placement: Placement, starts: list[int], lasts: list[int]) -> list[Span]:
    return [
        _span(event, placement, start, start + last)
        for event, start, last in zip(steps.events, starts, lasts, strict=True)
    ]


def _span(event: Work | Message, placement: Placement, start: int, stop: int) -> Span:
    if isinstance(event, Work):
        kind, batch, chunk = event.step
        return Span(event.stage, Lane.COMPUTE, _ACTIVITY[kind], batch, chunk, start, stop)
    on = event.kind is Kind.FORWARD
    return Span(
        event.source,
        Lane.SEND_ON if on else Lane.SEND_BACK,
        Activity.ACTIVATIONS if on else Activity.GRADIENTS,
        event.micro_batch,
        event.piece // placement.pipeline,
        start,
        stop,
    )


def _timeline(stages: int, spans: list[Span], tails: Sequence[Tail]) -> Timeline:
    busy, first, last = [0] * stages, [-1] * stages, [0] * stages
    for span in spans:
        if span.lane is Lane.COMPUTE:
            busy[span.stage] += span.stop - span.start
            last[span.stage] = max(last[span.stage], span.stop)
            first[span.stage] = span.start if first[span.stage] < 0 else min(first[span.stage], span.start)
    spans += [span for stage, tail in enumerate(tails) for span in _tail(stage, tail, last[stage])]
    spans.sort(key=lambda span: (span.start, span.stage, span.lane, span.stop))
    stop = max(span.stop for span in spans)
    return Timeline(stages, tuple(spans), tuple(busy), tuple(max(0, f) for f in first), tuple(last), stop)


def _tail(stage: int, tail: Tail, start: int) -> list[Span]:
    over = start + tail.reduction
    spans = [
        Span(stage, Lane.REDUCE, Activity.REDUCTION, -1, 0, start, over),
        Span(stage, Lane.COMPUTE, Activity.OPTIMIZER, -1, 0, over, over + tail.optimizer),
    ]
    return [span for span in spans if span.stop > span.start]
