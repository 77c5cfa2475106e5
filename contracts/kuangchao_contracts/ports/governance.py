"""Governance: a read-only view of the other layers. Changes nothing."""

from abc import abstractmethod

from kuangchao_contracts.audit import AuditClass, AuditPage, AuditQuery
from kuangchao_contracts.auditproof import ProveReply, ProveRequest, VerifyReport, VerifyRequest
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.ports.base import Port, operation


class GovernanceControl(Port):
    """Audit queries and proofs."""

    layer = Layer.GOVERNANCE

    @abstractmethod
    @operation(audit=AuditClass.READ, kind="audit")
    async def query(self, capability: Capability, request: AuditQuery) -> AuditPage:
        """Records that match every filter, oldest first."""

    @abstractmethod
    @operation(audit=AuditClass.READ, kind="audit")
    async def verify(self, capability: Capability, request: VerifyRequest) -> VerifyReport:
        """Check a part of the store of the whole cluster; the report says where to go on."""

    @abstractmethod
    @operation(audit=AuditClass.READ, kind="audit")
    async def prove(self, capability: Capability, request: ProveRequest) -> ProveReply:
        """Proofs that whoever asks can check with public keys alone."""
