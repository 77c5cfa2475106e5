"""Orders of passes: complete, legal, as large in memory as the footprint says, and as published."""

from collections import Counter

import pytest
from hypothesis import given

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.parallel import ZERO_BUBBLE, Schedule
from kuangchao_operator.layers.strategy.footprint.schedules import in_flight
from kuangchao_operator.layers.strategy.schedule.orders import orders
from kuangchao_operator.layers.strategy.schedule.passes import Kind, Order, Pass, held
from kuangchao_operator.layers.strategy.schedule.proof import prove

from .cases import Case, cases, many


def text(order: Order) -> str:
    """F0 F1 B0, and F0.1 where there are chunks."""
    chunks = any(step.chunk for step in order)
    return " ".join(f"{kind}{batch}.{chunk}" if chunks else f"{kind}{batch}" for kind, batch, chunk in order)


@many
@given(case=cases())
def test_every_pass_stands_in_its_stage_exactly_once(case: Case) -> None:
    kinds = tuple(Kind) if case.schedule in ZERO_BUBBLE else (Kind.FORWARD, Kind.BACKWARD)
    all_of_them = {Pass(k, m, c) for k in kinds for m in range(case.micro_batches) for c in range(case.virtual)}
    assert [Counter(order) for order in case.orders] == [Counter(all_of_them)] * case.pipeline


@many
@given(case=cases())
def test_a_step_ends_with_buffers_and_with_exchanges(case: Case) -> None:
    prove(*case)


@many
@given(case=cases())
def test_stages_hold_what_the_footprint_says(case: Case) -> None:
    counted = [held(order, case.virtual) for order in case.orders]
    assert counted == [in_flight(case.schedule, stage, *case[1:]) for stage in range(case.pipeline)]


@many
@given(case=cases())
def test_micro_batches_come_in_order_in_each_chunk_and_kind(case: Case) -> None:
    for order in case.orders:
        for kind in Kind:
            for chunk in range(case.virtual):
                numbers = [step.micro_batch for step in order if (step.kind, step.chunk) == (kind, chunk)]
                assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("case", "stage", "expected"),
    [
        (Case(Schedule.GPIPE, 2, 1, 3), 0, "F0 F1 F2 B0 B1 B2"),
        (Case(Schedule.ONE_F_ONE_B, 4, 1, 6), 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5"),
        (Case(Schedule.ONE_F_ONE_B, 4, 1, 6), 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"),
        (Case(Schedule.ONE_F_ONE_B, 4, 1, 2), 0, "F0 F1 B0 B1"),
        # Megatron-LM: warm-up of 2 (p - r - 1) + (v - 1) p = 4 and 2 passes
        (
            Case(Schedule.INTERLEAVED, 2, 2, 4),
            0,
            "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0",
        ),
        (
            Case(Schedule.INTERLEAVED, 2, 2, 4),
            1,
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0",
        ),
        # Qi et al. 2023, figures 3 and 4: the first and the last of four devices
        (Case(Schedule.ZERO_BUBBLE_H1, 4, 1, 6), 0, "F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 B3 W3 B4 W4 B5 W5"),
        (Case(Schedule.ZERO_BUBBLE_H1, 4, 1, 6), 3, "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 W3 W4 W5"),
        (Case(Schedule.ZERO_BUBBLE_H2, 2, 1, 4), 0, "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"),
        (Case(Schedule.ZERO_BUBBLE_H2, 2, 1, 4), 1, "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"),
        (Case(Schedule.ONE_F_ONE_B, 1, 1, 2), 0, "F0 B0 F1 B1"),
        (Case(Schedule.ZERO_BUBBLE_H1, 1, 1, 2), 0, "F0 B0 W0 F1 B1 W1"),
    ],
)
def test_orders_are_the_published_ones(case: Case, stage: int, expected: str) -> None:
    assert text(case.orders[stage]) == expected


@pytest.mark.parametrize(
    ("case", "field", "nearest"),
    [
        (Case(Schedule.ONE_F_ONE_B, 0, 1, 4), "pipeline", 1),
        (Case(Schedule.ONE_F_ONE_B, 2, 1, 0), "microBatches", 1),
        (Case(Schedule.ONE_F_ONE_B, 2, 2, 4), "virtualStages", 1),
        (Case(Schedule.ZERO_BUBBLE_H1, 2, 2, 4), "virtualStages", 1),
        (Case(Schedule.ZERO_BUBBLE_V, 2, 1, 4), "virtualStages", 2),
        (Case(Schedule.INTERLEAVED, 4, 2, 3), "microBatches", 4),
    ],
)
def test_what_has_no_order_is_refused_with_what_has_one(case: Case, field: str, nearest: int) -> None:
    with pytest.raises(InvalidInputError) as refused:
        orders(*case)
    assert (refused.value.field, refused.value.nearest) == (field, nearest)
