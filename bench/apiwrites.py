"""How often the API server was written to, by resource, from its own metrics."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from prometheus_client.parser import text_string_to_metric_families
from tests.api.server import ApiServer

VERBS = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})
NOT_OF_JOBS = frozenset({"leases", "secrets", "configmaps", "tokenreviews", "subjectaccessreviews", "serviceaccounts"})
"""The API server's own leases; Secrets, in which leases of the job that runs and of governance are renewed; the
ConfigMap that holds the head of the audit record, once a minute; and checks of rights, which write nothing. A waiting
job has neither Secret nor ConfigMap, so it has no part in any of them."""


@dataclass(frozen=True, slots=True)
class Writes:
    """Requests that write, by resource."""

    counts: Counter[str]

    @classmethod
    def now(cls, server: ApiServer) -> Self:
        """All since the API server started."""
        return cls(count(server.kubectl("get", "--raw", "/metrics").splitlines(keepends=True)))

    def __sub__(self, earlier: "Writes") -> "Writes":
        """What came since."""
        counts = Counter(self.counts)
        counts.subtract(earlier.counts)
        return Writes(+counts)

    def of_jobs(self) -> int:
        """Writes that a job could be the cause of: whoever made them, to whatever object of a job."""
        return sum(number for resource, number in self.counts.items() if resource not in NOT_OF_JOBS)

    def others(self) -> str:
        """The rest, for people."""
        rest = [f"{number} {name}" for name, number in sorted(self.counts.items()) if name in NOT_OF_JOBS]
        return ", ".join(rest) or "none"


def count(lines: Iterable[str]) -> Counter[str]:
    """Writes by resource in an exposition of kube-apiserver."""
    wanted = "".join(line for line in lines if line.startswith("apiserver_request_total{"))
    found: Counter[str] = Counter()
    for sample in (sample for family in text_string_to_metric_families(wanted) for sample in family.samples):
        if sample.labels.get("verb") in VERBS and not sample.labels["dry_run"]:
            found[sample.labels["resource"]] += int(sample.value)
    return found
