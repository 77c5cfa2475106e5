"""The lag of the event loop: what is measured is what a block adds to a sleep, and the metrics keep the worst."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from kuangchao_operator.app.looplag import INTERVAL_SECONDS, watch_loop
from kuangchao_operator.app.metrics import Metrics
from kuangchao_operator.handlers.watch import WatchClock
from kuangchao_operator.kube.cache import Cache


class OverError(Exception):
    """No more sleeps."""


async def test_the_lag_is_the_sleep_beyond_the_interval() -> None:
    now, lags = 100.0, []
    blocks: Iterator[float] = iter((0.0, 1.5, -0.01))

    async def sleep(seconds: float) -> None:
        nonlocal now
        block = next(blocks, None)
        if block is None:
            raise OverError
        now += seconds + block

    with pytest.raises(OverError):
        await watch_loop(lags.append, lambda: now, sleep)
    assert lags == pytest.approx([0.0, 1.5, 0.0])
    assert INTERVAL_SECONDS < 0.5, "a block of a second must show as nearly a second"


def test_the_metrics_keep_the_longest_lag_and_count_all() -> None:
    metrics = Metrics(Cache(), WatchClock(), datetime.now(UTC), lambda: 0)
    for lag in (0.02, 0.7, 0.03):
        metrics.lagged(lag)
    lines = metrics.render().decode().splitlines()
    assert "kuangchao_event_loop_longest_lag_seconds 0.7" in lines
    assert "kuangchao_event_loop_lag_seconds_count 3.0" in lines
    assert 'kuangchao_event_loop_lag_seconds_bucket{le="0.5"} 2.0' in lines
