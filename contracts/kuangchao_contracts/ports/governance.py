"""Governance: a read-only view of the other layers. Changes nothing."""

from abc import abstractmethod

from kuangchao_contracts.audit import AuditClass, AuditPage, AuditQuery
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.ports.base import Port, operation


class GovernanceControl(Port):
    """Audit queries."""

    layer = Layer.GOVERNANCE

    @abstractmethod
    @operation(audit=AuditClass.READ, kind="audit")
    async def query(self, capability: Capability, request: AuditQuery) -> AuditPage:
        """Records that match every filter, oldest first."""
