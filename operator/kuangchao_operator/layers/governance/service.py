"""Audit queries and proofs inside the operator, behind the gate. Reads the store's files; cannot write to them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kuangchao_contracts.audit import AuditPage, AuditQuery
from kuangchao_contracts.auditproof import ProveReply, ProveRequest, VerifyReport, VerifyRequest
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.errors import CrossTenantError, InvalidInputError
from kuangchao_contracts.ports.governance import GovernanceControl
from kuangchao_contracts.resources import CLUSTER
from kuangchao_operator.audit.prove import prove
from kuangchao_operator.audit.query import query
from kuangchao_operator.audit.verify import verify_some

TENANT_LIMIT: Final = 1_000
"""Records per page for a token of one namespace."""


class GovernanceService(GovernanceControl):
    """Answers for the whole cluster only to a token of the cluster; any other sees its own namespace."""

    def __init__(self, directory: Path, dropped: Callable[[], int]) -> None:
        self._directory, self._dropped = directory, dropped

    async def query(self, capability: Capability, request: AuditQuery) -> AuditPage:
        """Records that match every filter, oldest first. Raises InvalidInputError, CrossTenantError, StorageError."""
        namespace = None if capability.claims.ns == CLUSTER else capability.claims.ns
        if namespace is not None:
            _require_own(namespace, request)
        page = await asyncio.to_thread(query, self._directory, request, namespace)
        return page.replace(dropped_reads=self._dropped())

    async def verify(self, capability: Capability, request: VerifyRequest) -> VerifyReport:
        """Check a part of the store. Raises CrossTenantError."""
        _require_cluster(capability)
        return await asyncio.to_thread(verify_some, self._directory, request)

    async def prove(self, capability: Capability, request: ProveRequest) -> ProveReply:
        """Proofs from the store. Raises CrossTenantError, InvalidInputError, BadNoteError, StorageError."""
        _require_cluster(capability)
        return await asyncio.to_thread(prove, self._directory, request)


def _require_cluster(capability: Capability) -> None:
    if capability.claims.ns != CLUSTER:
        raise CrossTenantError("the record of the cluster is proved to tokens of the cluster only")


def _require_own(namespace: str, request: AuditQuery) -> None:
    if request.resource is not None and request.resource.split("/")[0] != namespace:
        raise CrossTenantError("resource is in another namespace")
    if request.limit > TENANT_LIMIT:
        raise InvalidInputError("limit", request.limit, "is too large for one namespace's page", TENANT_LIMIT)
