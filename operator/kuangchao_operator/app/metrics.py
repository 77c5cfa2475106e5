"""Prometheus metrics of the operator. Counters exist at 0 from the start; no label ever holds a job's name."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kuangchao_contracts.reasons import ConditionType
from kuangchao_operator.app import training
from kuangchao_operator.audit.archive import Archive
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.handlers.watch import WatchClock
from kuangchao_operator.kube.cache import KINDS, Cache, Change, JobRecord
from kuangchao_operator.kube.pools import pool_facts
from kuangchao_operator.shell.fencing import holds

RESTART_CAUSES: Final = ("user", "infrastructure")
LAG_BUCKETS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """Counts what happens to jobs, from changes of the cache; sizes are read when somebody asks."""

    def __init__(self, cache: Cache, watches: WatchClock, started: datetime, active_loops: Callable[[], int]) -> None:
        self._cache, self._started = cache, started
        self._registry = CollectorRegistry()
        self._created = self._counter("kuangchao_jobs_created", "TrainingJobs created since the operator started")
        self._succeeded = self._counter("kuangchao_jobs_succeeded", "TrainingJobs that completed")
        self._failed = self._counter("kuangchao_jobs_failed", "TrainingJobs that failed")
        self._deleted = self._counter("kuangchao_jobs_deleted", "TrainingJobs deleted")
        self._restarts = Counter("kuangchao_job_restarts", "Restarts of training", ["cause"], registry=self._registry)
        for cause in RESTART_CAUSES:
            self._restarts.labels(cause)
        self._loops = Gauge("kuangchao_active_jobs", "Jobs with a running loop", registry=self._registry)
        self._loops.set_function(active_loops)
        heard = Gauge(
            "kuangchao_watch_last_event_seconds", "Unix time of the newest event", ["kind"], registry=self._registry
        )
        for kind in KINDS:
            heard.labels(kind).set_function(watches.reader(kind))
        self._devices = Gauge("kuangchao_pool_devices", "Devices of a pool", ["pool", "state"], registry=self._registry)
        self._rates = {
            figure: Gauge(name, text, ["pool"], registry=self._registry)
            for figure, (name, text) in (training.SUMMED | training.WORST).items()
        }
        self._lag = Histogram(
            "kuangchao_event_loop_lag_seconds",
            "How late the event loop woke a sleeper",
            buckets=LAG_BUCKETS,
            registry=self._registry,
        )
        self._longest_lag = 0.0
        Gauge(
            "kuangchao_event_loop_longest_lag_seconds", "The largest lag since the start", registry=self._registry
        ).set_function(lambda: self._longest_lag)
        cache.listen(self._changed)

    def lagged(self, seconds: float) -> None:
        """The event loop woke a sleeper so late."""
        self._lag.observe(seconds)
        self._longest_lag = max(self._longest_lag, seconds)

    def follow_policy(self, generation: Callable[[], int], stale: Callable[[], bool]) -> None:
        """Show which policy is in force, and whether the document has a fault and so is not."""
        Gauge("kuangchao_policy_generation", "Generation of the policy in force", registry=self._registry).set_function(
            generation
        )
        Gauge(
            "kuangchao_policy_stale",
            "1 while the policy document has a fault and an older one is in force",
            registry=self._registry,
        ).set_function(stale)

    def follow_audit(self, sink: StoreSink, archive: Archive) -> None:
        """Show what is lost, refused and left undone of the audit record."""
        for name, text, read in (
            ("kuangchao_audit_dropped", "Successful reads without a record", lambda: sink.dropped),
            ("kuangchao_audit_refused", "Records of control calls and denials refused", lambda: sink.refused),
            ("kuangchao_audit_blocked", "1 while no control call can be recorded", lambda: sink.blocked),
            ("kuangchao_audit_stream_dropped", "Stored records without a line in the stream", sink.not_streamed),
            ("kuangchao_audit_archive_failures", "Days that could not be moved or removed", lambda: archive.failed),
        ):
            Gauge(name, text, registry=self._registry).set_function(read)

    def follow_checkpoints(self, age: Callable[[], float], refused: Callable[[], int]) -> None:
        """Show how old the newest checkpoint of the audit record is, and how often the issuer refused to sign one."""
        Gauge(
            "kuangchao_audit_checkpoint_age_seconds",
            "Since the newest signed checkpoint of the audit record",
            registry=self._registry,
        ).set_function(age)
        Gauge(
            "kuangchao_audit_checkpoints_refused",
            "Refusals since the start: what is stored does not continue what was signed",
            registry=self._registry,
        ).set_function(refused)

    def render(self) -> bytes:
        """The exposition."""
        self._measure_pools()
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self._registry)

    def _measure_pools(self) -> None:
        self._devices.clear()
        for gauge in self._rates.values():
            gauge.clear()
        for record in self._cache.pools:
            name = record.pool.metadata.name
            for figure, value in training.rates(r.job for r in self._cache.jobs_in(name)).items():
                self._rates[figure].labels(name).set(value)
            facts = pool_facts(name, self._cache)
            if facts is None:
                continue
            self._devices.labels(name, "total").set(sum(n.devices for n in facts.nodes if n.ready))
            self._devices.labels(name, "reserved").set(sum(s.devices for c in facts.claims for s in c.shares))

    def _changed(self, change: Change) -> None:
        if change.kind != "TrainingJob":
            return
        before: JobRecord | None = change.before
        after: JobRecord | None = change.after
        if after is None:
            self._deleted.inc()
        elif before is None:
            created = after.job.metadata.creation_timestamp
            if created is not None and created.timestamp() >= int(self._started.timestamp()):
                self._created.inc()
        else:
            self._status_changed(before, after)

    def _status_changed(self, before: JobRecord, after: JobRecord) -> None:
        old, new = before.job.status, after.job.status
        if new is None or before.job.metadata.uid != after.job.metadata.uid:
            return
        for kind, counter in ((ConditionType.COMPLETE, self._succeeded), (ConditionType.FAILED, self._failed)):
            if holds(new, kind) and not holds(old, kind):
                counter.inc()
        charged = new.restarts - (old.restarts if old else 0)
        free = new.infrastructure_restarts - (old.infrastructure_restarts if old else 0)
        self._restarts.labels("user").inc(max(0, charged))
        self._restarts.labels("infrastructure").inc(max(0, free))
