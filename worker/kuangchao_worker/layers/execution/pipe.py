"""Runs a rank's stages of a pipeline by torch's schedules. Knows modules and their neighbours, never user code."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from kuangchao_contracts.parallel import ZERO_BUBBLE, Schedule
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_worker.parallel.dimensions import PIPELINE

TORCHS: Final = "torch.distributed.pipelining."
ONE_STAGE: Final[dict[Schedule, type[PipelineScheduleSingle]]] = {
    Schedule.GPIPE: ScheduleGPipe,
    Schedule.ONE_F_ONE_B: Schedule1F1B,
}
Multiple = ScheduleInterleaved1F1B | ScheduleInterleavedZeroBubble | ScheduleZBVZeroBubble
STAGES: Final[dict[Schedule, type[Multiple]]] = {
    Schedule.INTERLEAVED: ScheduleInterleaved1F1B,
    # with one stage on each rank its order is that of H1
    Schedule.ZERO_BUBBLE_H1: ScheduleInterleavedZeroBubble,
    Schedule.ZERO_BUBBLE_V: ScheduleZBVZeroBubble,
}
"""torch's schedules that take any number of stages on a rank."""
Loss = Callable[[torch.Tensor, int], torch.Tensor]
"""Loss of a micro-batch, from the last stage's output and the micro-batch's number."""


class PipeRunner:
    """The stages on this rank, by their number in the model. Losses are added up over micro-batches, so they come
    scaled by their number.

    `first` and `last` say whether the model begins and ends here, which may be on the same rank.
    """

    def __init__(
        self, stages: Mapping[int, nn.Module], mesh: DeviceMesh, plan: ParallelPlan, device: torch.device
    ) -> None:
        self._micro_batches, count = plan.accumulation_steps, plan.pipeline * plan.virtual_stages
        self.first, self.last = 0 in stages, count - 1 in stages
        group = mesh.get_group(PIPELINE)
        made = [PipelineStage(module, n, count, device, group=group) for n, module in stages.items()]
        if plan.schedule in ZERO_BUBBLE:
            for module in stages.values():
                module.register_forward_hook(_own)
        self._loss: Loss | None = None
        self._schedule = self._scheduled(plan.schedule, made)
        # torch hands a loss function its part of a target: here, which micro-batch it is
        self._numbers = torch.arange(self._micro_batches)

    def _scheduled(self, schedule: Schedule, stages: list[PipelineStage]) -> PipelineScheduleSingle | Multiple:
        if schedule in ONE_STAGE:
            (stage,) = stages
            return ONE_STAGE[schedule](stage, self._micro_batches, loss_fn=self._of, scale_grads=False)
        return STAGES[schedule](
            list(stages),
            self._micro_batches,
            loss_fn=self._of,
            scale_grads=False,
            # sharded parameters of all stages stay whole for the step: torch would gather those beyond the third anew
            max_active_stages=len(stages),
        )

    def step(self, inputs: Sequence[torch.Tensor], loss: Loss) -> list[float]:
        """Forward and backward of all micro-batches. `inputs` is read where the model begins, `loss` where it ends.

        Returns the losses where the model ends, nothing elsewhere.
        """
        self._loss = loss
        found: list[torch.Tensor] = []
        given = (torch.cat(list(inputs)),) if self.first else ()
        try:
            if self.last:
                self._schedule.step(*given, target=self._numbers, losses=found, return_outputs=False)
            else:
                self._schedule.step(*given, return_outputs=False)
        except RuntimeError as error:
            raise _raised(error) from None
        return [value.item() for value in found]

    def _of(self, output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        if self._loss is None:
            raise ValueError("a loss is asked for outside a step")
        return self._loss(output, int(number))


def _raised(error: BaseException) -> BaseException:
    """What was raised in a stage: torch puts an error of its own, "failed to run forward", in its place."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    wrapped = last is not None and str(last.tb_frame.f_globals.get("__name__")).startswith(TORCHS)
    return _raised(error.__cause__) if wrapped and error.__cause__ is not None else error


def _own(module: nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """What a stage gives, as torch's zero-bubble orders take it.

    A view is copied: torch detaches it in place, which no view can take. What frozen stages give asks for a gradient
    too: torch finds the weights of a stage by the way back to its input, and trains none where there is no way.
    """
    own = output.clone() if output._is_view() else output  # noqa: SLF001 - torch has no other name for it
    return own if own.requires_grad or not own.is_floating_point() else own.detach().requires_grad_()
