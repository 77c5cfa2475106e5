"""Names of the dimensions of a device mesh: topology makes it, state divides weights over it, execution runs stages."""

from typing import Final

from kuangchao_contracts.parallel import Overlay
from kuangchao_contracts.plan import Axis

TENSOR: Final = Axis.TENSOR.value
PIPELINE: Final = Axis.PIPELINE.value
DATA: Final = Axis.DATA.value
CONTEXT: Final = Axis.CONTEXT.value
EXPERT: Final = Overlay.EXPERT.value
"""Along it, in the mesh of experts, ranks divide those of a layer; along all others they have the same ones."""
EXPERT_DATA: Final = Overlay.EXPERT_DATA.value
EXPERT_REPLICATE: Final = "expertReplicate"
EXPERT_SHARD: Final = "expertShard"
COPIES: Final = (EXPERT_REPLICATE, EXPERT_SHARD, EXPERT_DATA)
"""Dimensions of ranks that have the same experts, outermost first."""
REPLICATE: Final = "replicate"
SHARD: Final = "shard"
"""With it, data ranks that share what is sharded: an island, of which each has a replica."""
