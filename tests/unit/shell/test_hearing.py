"""A process notices that it stood still, whoever looks first after it."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from kuangchao_operator.layers.execution import limits
from kuangchao_operator.shell.hearing import Hearing

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_standstill_is_a_time_without_a_look(caplog: pytest.LogCaptureFixture) -> None:
    now = START
    hearing = Hearing(lambda: now)
    for _ in range(100):
        now += timedelta(seconds=limits.STANDSTILL)
        assert hearing.deaf_until() is None
    now += timedelta(seconds=limits.STANDSTILL + 1)
    end = now
    assert hearing.deaf_until() == end
    now += timedelta(seconds=3)
    assert hearing.deaf_until() == end, "it is remembered"
    assert caplog.messages == ["stood still for 6 s: no fault is found for 15 s"]


def test_a_clock_that_is_set_back_is_no_standstill() -> None:
    now = START
    hearing = Hearing(lambda: now)
    now -= timedelta(hours=1)
    assert hearing.deaf_until() is None


async def test_its_duty_looks_while_nobody_else_does() -> None:
    seen = asyncio.Event()

    def clock() -> datetime:
        seen.set()
        return START

    hearing = Hearing(clock)
    seen.clear()
    duty = asyncio.create_task(hearing.keep())
    await seen.wait()
    duty.cancel()
