"""Runs of a step: bubbles against the closed forms, times that are not equal, transfers, the end of a step."""

from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts.parallel import Schedule
from kuangchao_operator.layers.strategy.schedule.run import ChunkTime, Tail, run
from kuangchao_operator.layers.strategy.schedule.timeline import PASSES, Activity, Lane, Timeline
from kuangchao_operator.layers.strategy.schedule.transport import Transport

from .cases import Case, cases, many

EQUAL = ChunkTime(forward=1000, backward=1000, weight=1000)


def equal(case: Case, time: ChunkTime = EQUAL, **more: object) -> Timeline:
    """A run in which all chunks take the same time."""
    return run(case.orders, case.placement, [[time] * case.virtual] * case.pipeline, **more)  # type: ignore[arg-type] # passed on


def bubble(timeline: Timeline) -> Fraction:
    """Bubble / ideal time."""
    return Fraction(timeline.makespan, max(timeline.busy)) - 1


@many
@given(pipeline=st.integers(1, 8), times=st.integers(1, 3), virtual=st.integers(1, 4), forward=st.integers(1, 9))
def test_bubbles_are_the_closed_forms(pipeline: int, times: int, virtual: int, forward: int) -> None:
    """Narayanan et al. 2021: (p-1)/m, over v when interleaved, whatever the share of the forward pass."""
    count, time = pipeline * times, ChunkTime(forward, 5, 3)
    plain = Fraction(pipeline - 1, count)
    assert bubble(equal(Case(Schedule.GPIPE, pipeline, 1, count), time)) == plain
    assert bubble(equal(Case(Schedule.ONE_F_ONE_B, pipeline, 1, count), time)) == plain
    if virtual > 1:
        interleaved = Case(Schedule.INTERLEAVED, pipeline, virtual, count)
        assert bubble(equal(interleaved, ChunkTime(1, 1, 1))) == plain / virtual


@many
@given(pipeline=st.integers(1, 8), more=st.integers(0, 12))
def test_zero_bubble_schedules_keep_their_word(pipeline: int, more: int) -> None:
    """Qi et al. 2023 and 2024, for passes of equal length and 2p-1 micro-batches or more."""
    count = 2 * pipeline - 1 + more
    h1, h2, v = (
        equal(Case(schedule, pipeline, virtual, count))
        for schedule, virtual in (
            (Schedule.ZERO_BUBBLE_H1, 1),
            (Schedule.ZERO_BUBBLE_H2, 1),
            (Schedule.ZERO_BUBBLE_V, 2),
        )
    )
    assert bubble(h1) == Fraction(pipeline - 1, 3 * count)
    assert (h2.steady_bubble_ppm, v.steady_bubble_ppm) == (0, 0)
    assert bubble(v) == Fraction(pipeline - 1, 6 * count)


@many
@given(case=cases(), forward=st.integers(1, 9), backward=st.integers(1, 9), weight=st.integers(0, 9), data=st.data())
def test_no_run_is_faster_than_its_work_and_stages_do_one_thing_at_a_time(
    case: Case, forward: int, backward: int, weight: int, data: st.DataObject
) -> None:
    slow = data.draw(st.lists(st.integers(1, 5), min_size=case.pipeline, max_size=case.pipeline))
    times = [[ChunkTime(forward * n, backward * n, weight * n, 1)] * case.virtual for n in slow]
    for transport in (Transport.EAGER, Transport.BATCHED):
        found = run(case.orders, case.placement, times, transport=transport)
        work = case.micro_batches * case.virtual * (forward + backward + weight)
        assert found.busy == tuple(work * n for n in slow)
        assert found.makespan >= max(found.busy)
        for stage in range(case.pipeline):
            row = [span for span in found.spans if span.stage == stage and span.lane is Lane.COMPUTE]
            assert all(before.stop <= span.start for before, span in pairwise(row))


@many
@given(case=cases(stages=6, most=12), send=st.integers(1, 5000))
def test_no_pass_starts_before_its_input_is_there(case: Case, send: int) -> None:
    found = equal(case, ChunkTime(700, 1100, 300, send))
    stops = {(s.activity, s.micro_batch, case.placement.piece(s.stage, s.chunk)): s.stop for s in found.spans}
    for span in found.spans:
        piece = case.placement.piece(span.stage, span.chunk)
        if span.activity is Activity.FORWARD and piece:
            key = Activity.ACTIVATIONS if case.placement.stage(piece - 1) != span.stage else Activity.FORWARD
            assert span.start >= stops[key, span.micro_batch, piece - 1]
        if span.activity is Activity.BACKWARD:
            assert span.start >= stops[Activity.FORWARD, span.micro_batch, piece]
        if span.activity is Activity.WEIGHT:
            assert span.start >= stops[Activity.BACKWARD, span.micro_batch, piece]


def test_the_slowest_stage_sets_the_pace() -> None:
    case = Case(Schedule.ONE_F_ONE_B, 3, 1, 10)
    found = run(
        case.orders, case.placement, [[ChunkTime(10, 10, 10)], [ChunkTime(20, 20, 20)], [ChunkTime(10, 10, 10)]]
    )
    # the way to the slow stage, its work without a pause but for its first gradient, the way back
    assert found.makespan == 10 + (10 * 60 + 10) + 20
    assert found.busy == (300, 600, 300)
    assert found.bubble_ppm == (found.makespan - 600) * 1_000_000 // found.makespan
    assert found.idle_ppm > found.bubble_ppm


def test_a_transfer_delays_the_next_stage_only_when_buffered() -> None:
    case = Case(Schedule.GPIPE, 2, 1, 2)
    time = ChunkTime(10, 10, 0, send=4)
    eager = equal(case, time)
    blocking = equal(case, time, transport=Transport.UNBATCHED)
    starts = lambda t: [s.start for s in t.spans if (s.stage, s.activity) == (0, Activity.FORWARD)]  # noqa: E731 - one line
    assert starts(eager) == [0, 10]
    assert starts(blocking) == [0, 14]
    assert [(s.start, s.stop) for s in eager.spans if s.activity is Activity.ACTIVATIONS] == [(10, 14), (20, 24)]


def test_gradients_and_states_come_after_the_last_pass_of_each_stage() -> None:
    case = Case(Schedule.ONE_F_ONE_B, 2, 1, 2)
    found = equal(case, tails=[Tail(reduction=500, optimizer=70), Tail(reduction=0, optimizer=70)])
    ends = [(s.stage, s.lane, s.activity, s.start, s.stop) for s in found.spans if s.activity not in PASSES]
    tail = [row for row in ends if row[1] is not Lane.SEND_ON and row[1] is not Lane.SEND_BACK]
    first, last = found.last
    assert tail == [
        (1, Lane.COMPUTE, Activity.OPTIMIZER, last, last + 70),
        (0, Lane.REDUCE, Activity.REDUCTION, first, first + 500),
        (0, Lane.COMPUTE, Activity.OPTIMIZER, first + 500, first + 570),
    ]
    assert found.stop == first + 570


def test_one_device_accumulates_without_a_bubble() -> None:
    found = equal(Case(Schedule.ONE_F_ONE_B, 1, 1, 3), tails=[Tail(100, 10)])
    assert (found.bubble_ppm, found.makespan, found.stop) == (0, 9000, 9110)
    assert [str(s.activity) for s in found.spans] == [
        *["forward", "backward"] * 3,
        "gradient reduction",
        "optimizer",
    ]
