"""What the operator keeps of a node: whether it is ready, since when not, and its labels. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node as last seen. `lost_since`: when its kubelet fell silent (condition Ready is no longer True)."""

    name: str
    labels: dict[str, str]
    ready: bool
    schedulable: bool
    lost_since: datetime | None


def node_record(body: dict[str, Any]) -> NodeRecord:
    """The record of a node."""
    conditions = (body.get("status") or {}).get("conditions") or ()
    ready: dict[str, Any] = next((c for c in conditions if c["type"] == "Ready"), {})
    is_ready = ready.get("status") == "True"
    since = ready.get("lastTransitionTime")
    return NodeRecord(
        name=body["metadata"]["name"],
        labels=dict(body["metadata"].get("labels") or {}),
        ready=is_ready,
        schedulable=not (body.get("spec") or {}).get("unschedulable", False),
        lost_since=datetime.fromisoformat(since) if since and not is_ready else None,
    )
