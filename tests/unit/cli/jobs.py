"""Jobs in all states for tests of the command line."""

from datetime import UTC, datetime, timedelta
from typing import Any

from kuangchao_contracts.api import TrainingJob

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def condition(kind: str, reason: str, status: str = "True", message: str = "") -> dict[str, Any]:
    """A condition five minutes old."""
    since = (NOW - timedelta(minutes=5)).isoformat()
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def job(name: str = "digits", spec: dict[str, Any] | None = None, **status: Any) -> TrainingJob:
    """A job made three hours ago, with a status unless none is given."""
    return TrainingJob.model_validate(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": "uid-1",
                "resourceVersion": "5",
                "creationTimestamp": (NOW - timedelta(hours=3)).isoformat(),
            },
            "spec": {"pool": "cpu", "task": "m:f", "devices": {"count": 4, "perPod": 2}, **(spec or {})},
            "status": status or None,
        }
    )
