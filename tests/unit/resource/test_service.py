"""The port: published descriptors of a pool, the newest of each node."""

import pytest
from tests.unit.resource.test_decide import cpu_node

from kuangchao_contracts.descriptor import NodeDescriptor
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.ports.resource import PoolRequest
from kuangchao_operator.layers.resource.service import DescriptorReader, ResourceService


class Reader(DescriptorReader):
    async def pool_descriptors(self, pool: str) -> tuple[NodeDescriptor, ...] | None:
        return (cpu_node("b", generation=2), cpu_node("b"), cpu_node("a")) if pool == "known" else None


async def test_the_newest_descriptor_of_each_node_without_a_token() -> None:
    answer = await ResourceService(Reader()).descriptors(None, PoolRequest(pool="known"))
    assert [(d.node, d.generation) for d in answer.descriptors] == [("a", 1), ("b", 2)]


async def test_an_unknown_pool_is_named() -> None:
    with pytest.raises(InvalidInputError, match="pool='other'"):
        await ResourceService(Reader()).descriptors(None, PoolRequest(pool="other"))
