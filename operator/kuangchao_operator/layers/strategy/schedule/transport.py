"""What stages send each other between passes, and what that makes them wait for. Pure.

Eager: a send is buffered and the stage goes on; a pass waits for its input only. Batched: what a stage sends and
receives between two passes is posted at once (batch_isend_irecv), each receive when its peer sends, and the stage waits
for all of it. Unbatched: one blocking call after another, the input of a pass, the pass, its output, as plain send and
recv in a loop would.
"""

from collections import defaultdict
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from kuangchao_operator.layers.strategy.schedule.events import Events, Message, Work, collect
from kuangchao_operator.layers.strategy.schedule.passes import Kind, Orders, Placement
from kuangchao_operator.layers.strategy.schedule.waits import Waits


class Transport(StrEnum):
    """How stages exchange hidden states and their gradients."""

    EAGER = "eager"
    BATCHED = "batched"
    UNBATCHED = "unbatched"


class Program(NamedTuple):
    """The passes and messages of one step, and an order in which all of them can happen."""

    events: tuple[Work | Message, ...]
    after: list[list[int]]
    """By event: those that wait for it."""
    order: list[int]


def program(orders: Orders, placement: Placement, transport: Transport) -> Program:
    """One step under a transport. Raises DeadlockError, naming the cycle, where it would never end."""
    events = collect(orders, placement)
    graph = _GRAPHS[transport](events)
    return Program(tuple(events.all), graph.after, graph.order(events.does))


def _graph(events: Events) -> Waits:
    graph = Waits(len(events.all))
    for first, then, stage in events.out_of_order:
        graph.edge(first, then, stage)
    return graph


def _eager(events: Events) -> Waits:
    """A message follows its pass, and the message before it on the same way; a pass follows its input."""
    graph, previous = _graph(events), dict[tuple[int, int], int]()
    for stage, row in enumerate(events.rows):
        graph.program(stage, [(number,) for number in row])
        for number in row:
            if (taken := events.input.get(number)) is not None:
                graph.edge(taken, number, stage)
            if (sent := events.output.get(number)) is not None:
                graph.edge(number, sent, stage)
                way = (stage, events.message(sent).target)
                if way in previous:
                    graph.edge(previous[way], sent, stage)
                previous[way] = sent
    return graph


def _unbatched(events: Events) -> Waits:
    graph = _graph(events)
    for stage, row in enumerate(events.rows):
        graph.program(stage, list(_one_by_one(events, row)))
    return graph


def _one_by_one(events: Events, row: range) -> Iterator[tuple[int, ...]]:
    for number in row:
        for event in (events.input.get(number), number, events.output.get(number)):
            if event is not None:
                yield (event,)


def _batched(events: Events) -> Waits:
    """Exchanges stand where they would if all stages were equally fast: both sides have them in the same order."""
    graph = _graph(events)
    ticks = _ticks(events)
    steps: list[defaultdict[tuple[int, int], list[int]]] = [defaultdict(list) for _ in events.rows]
    for stage, row in enumerate(events.rows):
        for number in row:
            steps[stage][ticks[number], 1].append(number)
            if (sent := events.output.get(number)) is not None:
                for end in (stage, events.message(sent).target):
                    steps[end][ticks[sent], 0].append(sent)
    for stage, found in enumerate(steps):
        graph.program(stage, [tuple(found[when]) for when in sorted(found)])
    return graph


def _ticks(events: Events) -> list[int]:
    """When each event would start if a forward pass took one tick, a whole backward pass two and messages none."""
    graph, start = _eager(events), [0] * len(events.all)
    works = [event for event in events.all if isinstance(event, Work)]
    splits = any(work.step.kind is Kind.WEIGHT for work in works)
    lasts = [1 if splits or work.step.kind is Kind.FORWARD else 2 for work in works] + [0] * len(events.all)
    for event in graph.order(events.does):
        stop = start[event] + lasts[event]
        for then in graph.after[event]:
            start[then] = max(start[then], stop)
    return start


_GRAPHS = {Transport.EAGER: _eager, Transport.BATCHED: _batched, Transport.UNBATCHED: _unbatched}
