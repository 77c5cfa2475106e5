"""Audit queries inside the operator, behind the gate. Reads the store's files; cannot write to them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from kuangchao_contracts.audit import AuditPage, AuditQuery
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.ports.governance import GovernanceControl
from kuangchao_contracts.resources import CLUSTER
from kuangchao_operator.audit.query import query


class GovernanceService(GovernanceControl):
    """Answers for the whole cluster only to a token of the cluster; any other sees its own namespace."""

    def __init__(self, directory: Path, dropped: Callable[[], int]) -> None:
        self._directory, self._dropped = directory, dropped

    async def query(self, capability: Capability, request: AuditQuery) -> AuditPage:
        """Records that match every filter, oldest first."""
        namespace = None if capability.claims.ns == CLUSTER else capability.claims.ns
        page = await asyncio.to_thread(query, self._directory, request, namespace)
        return page.replace(dropped_reads=self._dropped())
