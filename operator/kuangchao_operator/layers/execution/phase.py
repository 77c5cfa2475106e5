"""`status.phase` as a function of the conditions. An output only: no decision ever reads it."""

from collections.abc import Mapping

from kuangchao_contracts.api.meta import Condition, ConditionStatus
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Phase, Reason

QUEUE_REASONS = frozenset({Reason.WAITING_FOR_QUOTA, Reason.TOPOLOGY_PLACEMENT_FAILED, Reason.POOL_EMPTY})
"""Reasons of QuotaReserved=False with which a planned job simply waits for its turn."""


def phase(conditions: Mapping[str, Condition]) -> Phase:
    """The one word for a set of conditions; the first row that holds wins."""

    def holds(kind: C) -> bool:
        return kind in conditions and conditions[kind].status is ConditionStatus.TRUE

    def reason(kind: C) -> str:
        return conditions[kind].reason if kind in conditions else ""

    queued = not holds(C.ADMITTED) and reason(C.QUOTA_RESERVED) in QUEUE_REASONS
    rows = (
        (holds(C.FAILED), Phase.FAILED),
        (holds(C.COMPLETE), Phase.COMPLETE),
        (holds(C.SUSPENDED), Phase.SUSPENDED),
        (reason(C.SUSPENDED) == Reason.SUSPENDING, Phase.SUSPENDING),
        (holds(C.STALLED), Phase.STALLED),
        (queued, Phase.QUEUED),
        (holds(C.RESTARTING), Phase.RESTARTING),
        (holds(C.READY), Phase.RUNNING),
        (holds(C.ADMITTED) and reason(C.PODS_READY) == Reason.ADMITTED, Phase.ADMITTED),
        (holds(C.ADMITTED), Phase.STARTING),
    )
    return next((name for applies, name in rows if applies), Phase.PENDING)
