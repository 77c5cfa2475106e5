"""A plan as the typed operations of one step, in order. Pure: what a rank does, never how."""

from dataclasses import dataclass

from kuangchao_contracts.plan import ParallelPlan


@dataclass(frozen=True, slots=True)
class Compute:
    """Forward and backward of one micro-batch on the whole model; with the last one gradients are reduced."""

    micro_batch: int
    reduce: bool


@dataclass(frozen=True, slots=True)
class Pipe:
    """All micro-batches through this rank's stages of a pipeline, then gradients are reduced."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Hand the gradients of the step to state."""


@dataclass(frozen=True, slots=True)
class Agree:
    """Agree with all ranks on the loss, on saving and on stopping."""


Operation = Compute | Pipe | Commit | Agree


def compiled(plan: ParallelPlan) -> tuple[Operation, ...]:
    """The operations of every step of a plan."""
    if plan.pipeline > 1:
        return Pipe(), Commit(), Agree()
    count = plan.accumulation_steps
    return *(Compute(number, reduce=number == count - 1) for number in range(count)), Commit(), Agree()
