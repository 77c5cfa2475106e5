"""Whether a gang that was told to end from outside still saves: until it has, its attempt must stay open. Pure.

SIGTERM reaches the ranks of one pod, by an eviction or a deletion; all ranks agree on the step to stop at, save and end
with 143. A new attempt before the commit would throw that checkpoint away.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from kuangchao_contracts.faults import FaultReport
from kuangchao_contracts.reasons import Reason
from kuangchao_contracts.run import DRAINED_EXIT, RankState
from kuangchao_operator.layers.execution.facts import Gang
from kuangchao_operator.layers.execution.launchspec import grace_seconds
from kuangchao_operator.layers.execution.model import JobSnapshot, PodFact

ORDERLY: Final = frozenset({Reason.EVICTED, Reason.POD_LOST})
"""What a drain looks like; beside any other fault it cannot succeed, since a checkpoint needs every rank."""


def saves(report: FaultReport, snapshot: JobSnapshot, gang: Gang) -> bool:
    """Whether the incident is a drain that is not over: somebody still works on it, and has time left."""
    if any(Reason(failure.reason) not in ORDERLY for failure in report.failures):
        return False
    if gang.managed and snapshot.job.spec.checkpoint.storage is None:
        return False
    deadline = max(_deadlines(snapshot, gang), default=None)
    return deadline is not None and snapshot.now < deadline and _works(gang)


def _works(gang: Gang) -> bool:
    """Whether a rank on a pod that runs has not ended yet. Scripts do not agree on anything: there only pods that were
    told to end count, since the others may wait for their peers for ever."""
    return any(
        report.state is not RankState.EXITED
        for index, pod in gang.pods.items()
        if pod.exit_code is None and pod.node_lost_since is None and (gang.managed or _leaves(pod))
        for report in gang.pod_reports(index)
    )


def _deadlines(snapshot: JobSnapshot, gang: Gang) -> Iterator[datetime]:
    """When pods that leave are killed and, for the others, when a grace period since the first drained rank is over."""
    grace = timedelta(seconds=grace_seconds(snapshot.job))
    yield from (pod.ends_by for pod in gang.pods.values() if pod.ends_by is not None)
    for index in range(gang.size):
        agent, pod = gang.agents.get(index), gang.pods.get(index)
        since = (agent.first_exit_at if agent else None) or (pod.finished_at if pod else None)
        if since is not None and any(report.exit_code == DRAINED_EXIT for report in gang.pod_reports(index)):
            yield since + grace


def _leaves(pod: PodFact) -> bool:
    return pod.deleting or pod.disrupted
