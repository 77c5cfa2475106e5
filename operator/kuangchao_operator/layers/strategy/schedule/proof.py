"""Whether a schedule can run at all: who waits for whom, found before any device is taken. Pure."""

from functools import lru_cache

from kuangchao_contracts.parallel import Schedule
from kuangchao_operator.layers.strategy.schedule.orders import orders, placement
from kuangchao_operator.layers.strategy.schedule.sample import fewer
from kuangchao_operator.layers.strategy.schedule.transport import Transport, program


@lru_cache(maxsize=1024)
def prove(schedule: Schedule, pipeline: int, virtual: int, micro_batches: int) -> None:
    """Returns if a step ends with buffered sends and with exchanges that wait for their peers (eager and batched).

    Looks at twice as many micro-batches as stages: from then on a step repeats itself.

    Raises InvalidInputError where the schedule has no order for these numbers, DeadlockError where it would hang.
    """
    few = fewer(schedule, pipeline, virtual, micro_batches, 0, fills=2)
    rows, place = orders(schedule, pipeline, virtual, few), placement(schedule, pipeline, virtual)
    for transport in (Transport.EAGER, Transport.BATCHED):
        program(rows, place, transport)
