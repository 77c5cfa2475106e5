"""Steps that never end: found before they run, with who waits for whom in words."""

import pytest

from kuangchao_contracts.errors import PlanInfeasibleError
from kuangchao_contracts.parallel import Schedule
from kuangchao_operator.layers.strategy.schedule.passes import Kind, Orders, Pass, Placement
from kuangchao_operator.layers.strategy.schedule.transport import Transport, program
from kuangchao_operator.layers.strategy.schedule.waits import DeadlockError

from .cases import Case


def of(*rows: str) -> Orders:
    """Orders from F0 B0 W0, with F0.1 for the second chunk."""
    return tuple(
        tuple(
            Pass(Kind(word[0]), int(word[1:].split(".")[0]), int(word.partition(".")[2] or 0)) for word in row.split()
        )
        for row in rows
    )


def cycle(orders: Orders, placement: Placement, transport: Transport) -> tuple[str, ...]:
    with pytest.raises(DeadlockError) as found:
        program(orders, placement, transport)
    return found.value.cycle


def test_both_send_and_neither_receives() -> None:
    """pytorch/pytorch#172668: two ranks of two stages each, interleaved, receives deferred until they are used."""
    case = Case(Schedule.INTERLEAVED, 2, 2, 4)
    assert cycle(case.orders, case.placement, Transport.UNBATCHED) == (
        "stage 0 sends the activations of micro-batch 1 out of piece 0 to stage 1"
        " before it receives the activations of micro-batch 0 out of piece 1 from stage 1",
        "stage 1 sends the activations of micro-batch 0 out of piece 1 to stage 0"
        " before it receives the activations of micro-batch 1 out of piece 0 from stage 0",
    )


@pytest.mark.parametrize(
    ("case", "waits"),
    [
        (Case(Schedule.GPIPE, 4, 1, 8), 0),
        (Case(Schedule.ONE_F_ONE_B, 4, 1, 8), 2),
        # NVIDIA/Megatron-LM#5240: four stages of two chunks; all four wait for each other around the ring
        (Case(Schedule.INTERLEAVED, 4, 2, 8), 4),
        (Case(Schedule.ZERO_BUBBLE_H1, 4, 1, 8), 2),
        (Case(Schedule.ZERO_BUBBLE_V, 4, 2, 8), 2),
    ],
)
def test_only_one_way_traffic_does_without_batched_exchanges(case: Case, waits: int) -> None:
    if not waits:
        program(case.orders, case.placement, Transport.UNBATCHED)
        return
    found = cycle(case.orders, case.placement, Transport.UNBATCHED)
    assert len(found) == waits
    assert len({line.split()[1] for line in found}) == waits
    program(case.orders, case.placement, Transport.BATCHED)


@pytest.mark.parametrize("transport", Transport)
def test_a_warm_up_of_more_micro_batches_than_there_are(transport: Transport) -> None:
    """pytorch/torchtitan#775: the first stage warms up with one micro-batch a stage, the others know of fewer."""
    assert cycle(of("F0 F1 F2 B0 B1 B2", "F0 F1 B0 B1", "F0 B0 F1 B1"), Placement(3), transport) == (
        "stage 0 sends the activations of micro-batch 2 to stage 1, which never receives them",
    )


@pytest.mark.parametrize("transport", Transport)
def test_a_stage_without_a_layer(transport: Transport) -> None:
    """NVIDIA/Megatron-LM#1852."""
    assert cycle(of("F0 B0", "", "F0 B0"), Placement(3), transport) == (
        "stage 0 sends the activations of micro-batch 0 to stage 1, which has nothing to do",
    )


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (("F0 F1 B0", "F0 B0"), "stage 0 sends the activations of micro-batch 1 to stage 1, which never receives them"),
        (("B0 F0",), "runs the backward pass of micro-batch 0 before it runs the forward pass of micro-batch 0"),
        (("B0",), "the backward pass of micro-batch 0 after the forward pass of micro-batch 0, which never runs"),
        (("F0 F1 B0 B1", "F1 F0 B1 B0"), ""),
    ],
)
def test_orders_that_contradict_each_other(rows: tuple[str, ...], words: str) -> None:
    found = cycle(of(*rows), Placement(len(rows)), Transport.UNBATCHED)
    assert words in "; ".join(found)


def test_a_long_cycle_is_cut_in_the_message_only() -> None:
    case = Case(Schedule.INTERLEAVED, 12, 2, 12)
    with pytest.raises(PlanInfeasibleError) as found:
        program(case.orders, case.placement, Transport.UNBATCHED)
    assert isinstance(found.value, DeadlockError)
    assert len(found.value.cycle) == 12
    assert str(found.value).endswith("; and 4 more")
    assert found.value.code == "Deadlock"


def test_the_same_orders_give_the_same_words() -> None:
    case = Case(Schedule.ONE_F_ONE_B, 6, 1, 9)
    assert len({cycle(case.orders, case.placement, Transport.UNBATCHED) for _ in range(3)}) == 1
