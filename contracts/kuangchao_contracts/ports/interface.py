"""Interface: the front door of the token issuer and of what workers must know to judge tokens."""

from abc import abstractmethod

from kuangchao_contracts.audit import AuditClass
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.ports.base import Port, operation
from kuangchao_contracts.run import Empty, ExchangeReply, ExchangeRequest, FeedReply


class InterfaceControl(Port):
    """The two endpoints that workers have at every size of job."""

    layer = Layer.INTERFACE

    @abstractmethod
    @operation(audit=AuditClass.CONTROL)
    async def exchange(self, capability: Capability, request: ExchangeRequest) -> ExchangeReply:
        """A one-shot token for one consequential call that the lease's holder may make. Raises ExchangeDeniedError."""

    @abstractmethod
    @operation(audit=AuditClass.STEP, stale_ok=True)
    async def feed(self, capability: Capability, request: Empty) -> FeedReply:
        """Current attempt, policy generation and revocations; also answered to holders of an older attempt."""
