"""What the laws of a layout are judged on: the sizes of a whole setting, or as many as a request has pinned. Pure.

A size that is None is open: a law that needs it says nothing. So each law stands once, for what a user pinned, for
what a search tries and for a plan as it is written.
"""

from typing import Literal, NamedTuple

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import Sharding, TransformerModel
from kuangchao_operator.layers.strategy.footprint.setting import Setting

Reason = Literal["Infeasible", "ContradictoryPlan", "InvalidSpec"]


class Broken(NamedTuple):
    """A law that is broken: the field that it blames and why. What would do is for all laws to say (`nearest`)."""

    field: str
    value: int | str | bool
    why: str
    instead: tuple[str, ...] = ()
    """Further fields that could be changed, in the order in which a person would rather do so."""
    listed: bool = False
    """Whether all values that would do are few enough to be told."""
    hint: str = ""
    """What else would help, beside another value."""
    reason: Reason = "ContradictoryPlan"
    near: str | None = None
    """The nearest value where a law knows it better than by trying."""


class Contradiction(NamedTuple):
    """What cannot be: the field as plans name it, its value, the nearest legal one, and all of it in words."""

    field: str
    value: int | str
    nearest: str | None
    message: str


class Sizes(NamedTuple):
    """A layout as far as it is known."""

    model: TransformerModel | None = None
    sequence_length: int | None = None
    devices: int | None = None
    global_batch: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    data: int | None = None
    expert: int | None = None
    expert_tensor: int | None = None
    virtual: int | None = None
    sequence: bool | None = None
    stage_layers: tuple[int, ...] = ()
    micro_batch: int | None = None
    micro_batches: int | None = None
    schedule: Schedule | None = None
    sharding: Sharding | None = None
    shard_ranks: int = 0
    lone_ends: bool = False
    """Whether stages are made that have an embedding or an output layer alone: in other frameworks. In a plan only a
    list of layers may say so."""

    @property
    def stage_ranks(self) -> int | None:
        """Ranks of a pipeline stage, over which its experts are spread."""
        if self.tensor is not None and self.context is not None and self.data is not None:
            return self.tensor * self.context * self.data
        if self.devices is not None and self.pipeline is not None and self.devices % self.pipeline == 0:
            return self.devices // self.pipeline
        return None

    @property
    def most_micro_batches(self) -> int | None:
        """Micro-batches of a step, or as many as there can be: those of one sample."""
        if self.micro_batches is not None:
            return self.micro_batches
        if self.global_batch is None:
            return None
        return self.global_batch // ((self.data or 1) * (self.micro_batch or 1))


def sizes_of(setting: Setting, devices: int | None = None) -> Sizes:
    """All sizes of a setting; `devices` is how many there are, where that is given."""
    layout = setting.layout
    return Sizes(
        model=setting.model if setting.shaped else None,
        sequence_length=setting.sequence_length,
        devices=devices,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        context=layout.context,
        data=layout.data,
        expert=layout.expert,
        expert_tensor=layout.expert_tensor,
        virtual=layout.virtual,
        sequence=layout.sequence,
        stage_layers=layout.stage_layers or (),
        micro_batch=setting.micro_batch,
        micro_batches=setting.micro_batches,
        schedule=setting.schedule,
        sharding=setting.sharding,
        shard_ranks=layout.shard_ranks,
        lone_ends=True,
    )
