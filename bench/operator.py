"""The operator as a real process on a real API server: memory, time to pods, silence while jobs wait, a burst."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml
from tests.api.fakes import Job, Operator, Site, install
from tests.api.server import API, ApiServer

from bench.apiwrites import Writes
from bench.figures import Figure, per_minute, percentile

MEBIBYTE = 1 << 20
POLL_SECONDS = 0.02
SETTLE_SECONDS = 5.0
PATIENCE = 120.0
NODES = {"a": 8, "b": 8}
LAG = "kuangchao_event_loop_longest_lag_seconds"


def measure(quick: bool = False) -> list[Figure]:
    """All figures of the control plane; one API server, a fresh operator for the burst."""
    with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder)) as (server, operator):
        figures = memory(operator)
        figures += time_to_pods(Site(server, operator, "latency", NODES), 5 if quick else 30)
        figures += silence(Site(server, operator, "silence", NODES), 10.0 if quick else 60.0)
        # the longest block counts from the start of the process, so the burst gets a process of its own
        operator.terminate()
        operator.start()
        figures += burst(Site(server, operator, "burst", NODES), 50 if quick else 300)
    return figures


@contextmanager
def control_plane(folder: Path) -> Iterator[tuple[ApiServer, Operator]]:
    """API server with garbage collection, the chart's accounts, issuer and operator."""
    server = ApiServer(folder / "api", os.getpid(), controllers=True)
    try:
        install(server)
        state = folder / "operator"
        state.mkdir()
        operator = Operator(server, state)
        try:
            operator.start()
            yield server, operator
        finally:
            operator.stop()
    finally:
        server.close()


def memory(operator: Operator) -> list[Figure]:
    """Resident and proportional size of both processes before the first job."""
    time.sleep(SETTLE_SECONDS)
    return [
        _resident("operator", operator.pid, 150),
        _resident("issuer", _issuer(), None),
    ]


def _resident(name: str, pid: int, target: float | None, when: str = "idle") -> Figure:
    sizes = psutil.Process(pid).memory_full_info()
    note = f"PSS {sizes.pss / MEBIBYTE:.1f} MiB"
    value = round(sizes.rss / MEBIBYTE, 1)
    return Figure("operator", f"memory of {name}, {when}", value, "MiB", target=target, note=note)


def _issuer() -> int:
    """The issuer is a child of this process, as the operator is."""
    children = psutil.Process().children()
    return next(child.pid for child in children if "kuangchao_operator.signing" in child.cmdline())


def time_to_pods(site: Site, count: int) -> list[Figure]:
    """From just before the job is sent to the moment when a list shows both pods, one job after another."""
    taken = []
    for number in range(count):
        began = time.monotonic()
        job = site.job(f"job-{number}")
        until(partial(_has_pods, job, 2), f"pods of {job.name}")
        taken.append(time.monotonic() - began)
        job.delete()
        until(partial(_gone, job), f"end of {job.name}")
    note = f"{count} jobs of 2 pods, one after another"
    return [
        Figure("operator", "apply to pods, p50", round(percentile(taken, 50), 3), "s", note=note),
        Figure("operator", "apply to pods, p95", round(percentile(taken, 95), 3), "s", target=2.0, note=note),
        Figure("operator", "apply to pods, max", round(max(taken), 3), "s", note=note),
    ]


def _has_pods(job: Job, count: int) -> bool:
    return len(job.pods()) == count


def _gone(job: Job) -> bool:
    return job.object() is None and not job.pods()


def _in_phase(job: Job, phase: str) -> bool:
    return job.status().get("phase") == phase


def silence(site: Site, seconds: float) -> list[Figure]:
    """Writes to the API server while one job holds the pool and ten wait and ten are suspended."""
    holder = site.job("holder", count=sum(NODES.values()))
    until(partial(_has_pods, holder, sum(NODES.values())), "pods of the holder")
    waiting = [site.job(f"waiting-{n}") for n in range(10)]
    suspended = [site.job(f"suspended-{n}", suspend=True) for n in range(10)]
    for jobs, phase in ((waiting, "Queued"), (suspended, "Suspended")):
        for job in jobs:
            until(partial(_in_phase, job, phase), f"{job.name} {phase}")
    time.sleep(SETTLE_SECONDS)
    before, versions = Writes.now(site.server), _versions(waiting + suspended)
    time.sleep(seconds)
    made, changed = Writes.now(site.server) - before, _versions(waiting + suspended)
    written = sum(changed[name] != version for name, version in versions.items())
    note = f"20 jobs, {seconds:.0f} s; others: {made.others()}"
    rate = per_minute(made.of_jobs(), seconds)
    figures = [
        Figure("operator", "writes while jobs wait", round(rate, 2), "/min", target=0, note=note),
        Figure("operator", "waiting jobs that changed", written, "", target=0, note="by resourceVersion"),
    ]
    for job in (holder, *waiting, *suspended):
        job.delete()
    until(lambda: not site.items("trainingjobs"), "end of all jobs")
    return figures


def _versions(jobs: list[Job]) -> dict[str, str]:
    return {job.name: (job.object() or {})["metadata"]["resourceVersion"] for job in jobs}


def burst(site: Site, count: int) -> list[Figure]:
    """Many jobs in one command; the pool admits a few. Time until each has conditions."""
    time.sleep(SETTLE_SECONDS)
    quiet = lag(site.operator)
    began = time.monotonic()
    site.server.kubectl("create", "-f", "-", stdin=yaml.safe_dump_all(_many(site, count)))
    sent = time.monotonic() - began
    until(lambda: _judged(site) == count, "a status of every job")
    taken = time.monotonic() - began
    note = f"{count} jobs, kubectl took {sent:.1f} s of it"
    return [
        Figure("operator", "burst: all jobs have a status", round(taken, 2), "s", target=30, note=note),
        _until_calm(site, count, began),
        _blocked(site.operator, quiet),
        _resident("operator", site.operator.pid, None, f"{count} jobs"),
    ]


def _blocked(operator: Operator, before: float) -> Figure:
    value, note = round(lag(operator), 3), f"{before:.3f} s before the burst"
    return Figure("operator", "burst: longest block of the loop", value, "s", target=1.0, note=note)


def _many(site: Site, count: int) -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": "kuangchao.io/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": f"burst-{number:03}", "namespace": site.namespace},
            "spec": {"pool": site.pool, "task": "tasks:train", "devices": {"count": 2}},
        }
        for number in range(count)
    ]


def _jobs(site: Site) -> list[dict[str, Any]]:
    return list(site.server.request("GET", f"{API}/namespaces/{site.namespace}/trainingjobs")["items"])


def _judged(site: Site) -> int:
    return sum(bool(job.get("status", {}).get("conditions")) for job in _jobs(site))


def _until_calm(site: Site, count: int, began: float) -> Figure:
    """When the last admitted gang has its pods: the burst is over, not only answered."""
    admitted = sum(NODES.values()) // 2
    until(lambda: len(site.items("pods")) == admitted * 2, "pods of all admitted jobs")
    taken = time.monotonic() - began
    return Figure("operator", "burst: all pods that fit", round(taken, 2), "s", note=f"{admitted} of {count} jobs fit")


def lag(operator: Operator) -> float:
    """The longest block of the operator's event loop since it started."""
    line = next(line for line in operator.metrics().splitlines() if line.startswith(f"{LAG} "))
    return float(line.split()[1])


def until(probe: Callable[[], bool], what: str) -> None:
    """Ask until it is so."""
    end = time.monotonic() + PATIENCE
    while not probe():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {PATIENCE:.0f} s: {what}")
        time.sleep(POLL_SECONDS)
