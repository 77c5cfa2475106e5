"""Resource: what exists and how healthy it is. Never allocates."""

from abc import abstractmethod

from kuangchao_contracts.audit import AuditClass
from kuangchao_contracts.base import Contract, Name
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.descriptor import NodeDescriptor
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.ports.base import Port, operation


class PoolRequest(Contract):
    """A pool by name."""

    pool: Name


class PoolDescriptors(Contract):
    """The newest descriptor of every node of a pool."""

    descriptors: tuple[NodeDescriptor, ...]


class ResourceControl(Port):
    """Published descriptors: pure data, public to read."""

    layer = Layer.RESOURCE

    @abstractmethod
    @operation(audit=AuditClass.PUBLIC, kind="pools")
    async def descriptors(self, capability: Capability | None, request: PoolRequest) -> PoolDescriptors:
        """Descriptors of a pool's nodes. Raises InvalidInputError for an unknown pool."""
