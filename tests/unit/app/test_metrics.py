"""Counters exist at 0, move with what happens to jobs, and never name one."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from kuangchao_operator.app.metrics import Metrics
from kuangchao_operator.handlers.watch import WatchClock
from kuangchao_operator.kube.cache import Cache
from tests.unit.kube.bodies import job, pool

Value = Callable[[str], float]


@pytest.fixture
def cache() -> Cache:
    return Cache()


@pytest.fixture
def value(cache: Cache) -> Value:
    metrics = Metrics(cache, WatchClock(), datetime(2025, 1, 1, tzinfo=UTC), lambda: 3)

    def read(name: str) -> float:
        lines = metrics.render().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).rsplit(" ", 1)[1])

    return read


def condition(kind: str) -> dict[str, object]:
    entry = {"type": kind, "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return {"conditions": [entry]}


@pytest.mark.parametrize(
    "name",
    ["kuangchao_jobs_created_total", "kuangchao_jobs_succeeded_total", "kuangchao_jobs_failed_total",
     "kuangchao_jobs_deleted_total", 'kuangchao_job_restarts_total{cause="user"}',
     'kuangchao_job_restarts_total{cause="infrastructure"}'],
)  # fmt: skip
def test_counters_exist_from_the_start(value: Value, name: str) -> None:
    assert value(name) == 0


@pytest.mark.parametrize(("kind", "name"), [("Complete", "succeeded"), ("Failed", "failed")])
def test_an_end_is_counted_once(cache: Cache, value: Value, kind: str, name: str) -> None:
    cache.see("TrainingJob", job(version=1, status={}))
    cache.see("TrainingJob", job(version=2, status=condition(kind)))
    cache.see("TrainingJob", job(version=3, status={**condition(kind), "readyPods": 1}))
    assert value(f"kuangchao_jobs_{name}_total") == 1


def test_restarts_are_counted_by_who_pays(cache: Cache, value: Value) -> None:
    cache.see("TrainingJob", job(version=1, status={"restarts": 5}))
    cache.see("TrainingJob", job(version=2, status={"restarts": 6, "infrastructureRestarts": 2}))
    cache.see("TrainingJob", job(version=3, status={"restarts": 0, "infrastructureRestarts": 0}))
    assert value('kuangchao_job_restarts_total{cause="user"}') == 1
    assert value('kuangchao_job_restarts_total{cause="infrastructure"}') == 2


def test_jobs_from_before_the_start_are_not_created_again(value: Value, cache: Cache) -> None:
    cache.see("TrainingJob", job("old", uid="u-old", metadata={"creationTimestamp": "2024-01-01T00:00:00Z"}))
    cache.see("TrainingJob", job("new", uid="u-new"))
    cache.forget("TrainingJob", job("old", uid="u-old", version=2))
    assert value("kuangchao_jobs_created_total") == 1
    assert value("kuangchao_jobs_deleted_total") == 1


def test_loops_are_counted_when_asked(value: Value) -> None:
    assert value("kuangchao_active_jobs") == 3


def test_the_policy_in_force_is_shown_as_it_is_when_asked(cache: Cache) -> None:
    metrics, now = (
        Metrics(cache, WatchClock(), datetime(2025, 1, 1, tzinfo=UTC), lambda: 0),
        {"generation": 4, "stale": 0},
    )
    metrics.follow_policy(lambda: now["generation"], lambda: bool(now["stale"]))
    assert "kuangchao_policy_generation 4.0" in metrics.render().decode()
    assert "kuangchao_policy_stale 0.0" in metrics.render().decode()
    now.update(generation=5, stale=1)
    assert "kuangchao_policy_generation 5.0" in metrics.render().decode()
    assert "kuangchao_policy_stale 1.0" in metrics.render().decode()


def test_rates_of_running_jobs_add_up_by_pool_and_the_worst_link_is_shown_whatever_strangers_say(
    cache: Cache, value: Value
) -> None:
    cache.see("ResourcePool", pool("p"))
    texts = {"a": "100.5", "b": "20", "c": "nan", "d": "1e300", "e": "-5", "f": "many", "done": "1000"}
    for name, text in texts.items():
        progress = {"step": 1, "metrics": {"samplesPerSecond": text, "linkLoss": text}}
        status = {"phase": "Complete" if name == "done" else "Running", "progress": progress}
        cache.see("TrainingJob", job(name, uid=f"u-{name}", status=status))
    cache.see("TrainingJob", job("silent", uid="u-silent", status={"phase": "Running"}))
    assert value('kuangchao_pool_samples_per_second{pool="p"}') == 120.5
    assert value('kuangchao_pool_tokens_per_second{pool="p"}') == 0
    assert value('kuangchao_pool_link_loss{pool="p"}') == 100.5
    with pytest.raises(StopIteration):
        value('kuangchao_pool_link_latency_seconds{pool="p"}')  # nobody measures it, and 0 would be a perfect link
