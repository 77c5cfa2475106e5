"""Audit records for tests."""

from datetime import UTC, datetime
from typing import Any

from kuangchao_contracts.audit import AuditRecord, Decision, Stage
from tests.unit.authority.kit import NOW, RESOURCE


def record(number: int = 1, **changes: Any) -> AuditRecord:
    """A record that differs from others by its number."""
    values: dict[str, Any] = {
        "ts": datetime.fromtimestamp(NOW + number, UTC),
        "opid": f"op-{number}",
        "stage": Stage.SYSTEM,
        "layer": "execution",
        "op": "execution.launch",
        "resource": RESOURCE,
        "subject": "layer:execution",
        "job": "digits",
        "decision": Decision.ALLOW,
    }
    return AuditRecord(**(values | changes))
