"""Resource's side of its port: published descriptors of a pool, read through whatever the shell gives it."""

from abc import ABC, abstractmethod

from kuangchao_contracts.capability import Capability
from kuangchao_contracts.descriptor import NodeDescriptor
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.ports.resource import PoolDescriptors, PoolRequest, ResourceControl
from kuangchao_operator.layers.resource.decide import newest


class DescriptorReader(ABC):
    """Where published descriptors are found: the API server's objects, or this machine."""

    @abstractmethod
    async def pool_descriptors(self, pool: str) -> tuple[NodeDescriptor, ...] | None:
        """Descriptors of the nodes that a pool selects, of any generation; None when there is no such pool."""


class ResourceService(ResourceControl):
    """Answers from published descriptors only, so it works while nothing else does."""

    def __init__(self, reader: DescriptorReader) -> None:
        self._reader = reader

    async def descriptors(self, capability: Capability | None, request: PoolRequest) -> PoolDescriptors:  # noqa: ARG002
        """The newest descriptor of every node of a pool. Raises InvalidInputError for an unknown pool."""
        found = await self._reader.pool_descriptors(request.pool)
        if found is None:
            raise InvalidInputError("pool", request.pool, "there is no such ResourcePool")
        return PoolDescriptors(descriptors=newest(found))
