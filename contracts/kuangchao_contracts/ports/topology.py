"""Topology: links between ranks. Builds, keeps and destroys them; never looks at what they carry."""

from abc import abstractmethod
from typing import Annotated

from pydantic import Field

from kuangchao_contracts.audit import AuditClass
from kuangchao_contracts.base import Contract, ShortText
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_contracts.ports.base import Port, operation
from kuangchao_contracts.run import Ack, Empty


class BuildRequest(Contract):
    """Build the process groups of a plan for one attempt."""

    plan: ParallelPlan
    attempt: Annotated[int, Field(ge=1)]
    rank: Annotated[int, Field(ge=0)]
    master_host: ShortText
    master_port: Annotated[int, Field(ge=1, le=65_535)]
    store_prefix: ShortText
    timeout_seconds: Annotated[int, Field(ge=1)] = 300


class LinkReport(Contract):
    """Health of the rank's links, as reported to other layers. Nothing is decided here."""

    groups: Annotated[tuple[ShortText, ...], Field(max_length=64)]
    healthy: bool
    detail: ShortText = ""


class TopologyRank(Port):
    """Topology inside a rank process."""

    layer = Layer.TOPOLOGY

    @abstractmethod
    @operation(audit=AuditClass.STEP)
    def build(self, capability: Capability, request: BuildRequest) -> LinkReport:
        """Create the groups of the plan in topological order.

        Raises RankMismatchError for a rank that is not the token's, ConflictError for another plan or attempt.
        """

    @abstractmethod
    @operation(audit=AuditClass.STEP)
    def destroy(self, capability: Capability, request: Empty) -> Ack:
        """Tear down all groups in bounded time, also when peers are dead."""
