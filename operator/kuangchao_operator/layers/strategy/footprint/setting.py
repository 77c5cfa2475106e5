"""All that the footprint of one device depends on. Pure."""

from dataclasses import dataclass, field
from enum import StrEnum

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import Optimizer, Precision, Recompute, Sharding, TransformerModel
from kuangchao_operator.layers.strategy.footprint.layout import Layout


class Recomputed(StrEnum):
    """Parts of a layer that selective recomputation does not keep."""

    CORE_ATTENTION = "core_attn"
    FFN = "mlp"
    LATENT = "mla_up_proj"
    NORMS = "layernorm"
    EXPERT_ACTIVATION = "moe_act"
    EXPERTS = "moe"
    OPERATORS = "operators"
    """By operator, as torchtitan's "selective op": every other matrix product is kept, and attention."""


class Loss(StrEnum):
    """How the loss is computed from the logits."""

    PLAIN = "plain"
    FUSED = "fused"
    SHARDED = "sharded"


class Offload(StrEnum):
    """What stands in main memory instead of the device's: gradients go with the optimizer that updates there."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    PARAMETERS = "parameters"


SHAPELESS = TransformerModel(name="measured", layers=1, hidden=1, heads=1, ffn=1, vocab=1)
"""Stands in a Setting for a model without a shape: no part is asked of it."""
CORE: frozenset[Recomputed] = frozenset({Recomputed.CORE_ATTENTION})


@dataclass(frozen=True, slots=True)
class Setting:
    """A model, how it is trained and how it is split. The sizes of a whole micro-batch, not of a rank's share."""

    model: TransformerModel
    layout: Layout
    sequence_length: int
    micro_batch: int
    micro_batches: int
    precision: Precision
    optimizer: Optimizer
    backend: str
    sharding: Sharding = Sharding.NONE
    recompute: Recompute = Recompute.NONE
    modules: frozenset[Recomputed] = field(default=CORE)
    schedule: Schedule = Schedule.ONE_F_ONE_B
    fused_attention: bool = True
    dropout: bool = False
    loss: Loss = Loss.PLAIN
    allocator: str = "default"
    offload: Offload = Offload.NONE
    expert_imbalance_permille: int = 1000
    grouped_experts: bool = True
    """Whether the experts of a rank are computed by one grouped product, not one after another."""
    plain_ddp: bool = False
    """Whether a script reduces its gradients, as DDP does unless told otherwise: its buckets hold them once more."""
    logits_joined: bool = False
    """Whether each tensor rank gets all logits before the loss, and not those of its part of the vocabulary only."""

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on a rank, before sequence parallelism divides them further."""
        return -(-self.micro_batch * self.sequence_length // self.layout.context)

    def recomputes(self, part: Recomputed) -> bool:
        """Whether a part of a layer is not kept. Whoever recomputes experts recomputes their activation too."""
        if self.recompute is not Recompute.SELECTIVE:
            return False
        return part in self.modules or (part is Recomputed.EXPERT_ACTIVATION and Recomputed.EXPERTS in self.modules)

    @property
    def shaped(self) -> bool:
        """Whether layers and heads of the model are known."""
        return self.model is not SHAPELESS

    @property
    def folded(self) -> bool:
        """Whether the second chunk of a stage is on the way back up."""
        return self.schedule is Schedule.ZERO_BUBBLE_V
