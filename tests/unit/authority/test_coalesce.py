"""Floods of equal denials: none goes uncounted, also where one record already stands for many."""

from kuangchao_operator.audit.coalesce import VERBATIM, VERBATIM_OF_ONE, WINDOW_SECONDS, DenialCounter
from tests.unit.authority.kit import Clock
from tests.unit.authority.records import record


def test_records_that_stand_for_many_calls_keep_their_counts() -> None:
    counter = DenialCounter(Clock())
    told = [record(number, count=7) for number in range(VERBATIM + 30)]
    stored = [item.count for item in told if counter.admit(item)]
    assert len(stored) == VERBATIM
    (rest,) = counter.flush()
    assert sum(stored) + rest.count == 7 * len(told)
    assert counter.flush() == []


def test_operations_that_nobody_knows_are_counted_as_one() -> None:
    counter = DenialCounter(Clock())
    told = [record(number, layer="unknown", op=f"made.up{number}") for number in range(VERBATIM + 30)]
    assert sum(counter.admit(item) for item in told) == VERBATIM
    (rest,) = counter.flush()
    assert (rest.op, rest.count) == ("unknown", 30)


def test_one_subject_has_few_records_however_it_varies_its_faults() -> None:
    clock = Clock()
    counter = DenialCounter(clock)
    told = [record(number, op=f"state.{number % 20}", reason=f"R{number % 7}") for number in range(5_000)]
    stored = sum(item.count for item in told if counter.admit(item))
    assert stored == VERBATIM_OF_ONE
    assert counter.admit(record(subject="another")), "others are not concerned"
    rest = counter.flush()
    assert len(rest) <= 140
    assert stored + sum(item.count for item in rest) == len(told)
    clock.now += WINDOW_SECONDS
    assert counter.admit(record()), "a window later it is told one by one again"
