"""Runs a rank's stage of a pipeline by torch's schedules. Knows a module and its neighbours, never the user's code."""

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import ParallelPlan

PIPELINE: Final = "pipeline"
SCHEDULES: Final[dict[Schedule, type[PipelineScheduleSingle]]] = {
    Schedule.GPIPE: ScheduleGPipe,
    Schedule.ONE_F_ONE_B: Schedule1F1B,
}
Loss = Callable[[torch.Tensor, int], torch.Tensor]
"""Loss of a micro-batch, from the last stage's output and the micro-batch's number."""


class PipeRunner:
    """One stage. Losses are added up over micro-batches, so they come scaled by their number."""

    def __init__(self, module: nn.Module, mesh: DeviceMesh, plan: ParallelPlan, device: torch.device) -> None:
        index, self._count = mesh.get_local_rank(PIPELINE), plan.accumulation_steps
        self.first, self.last = index == 0, index == plan.pipeline - 1
        stage = PipelineStage(module, index, plan.pipeline, device, group=mesh.get_group(PIPELINE))
        self._loss: Loss | None = None
        self._schedule = SCHEDULES[plan.schedule](stage, self._count, loss_fn=self._of, scale_grads=False)
        # torch hands a loss function its part of a target: here, which micro-batch it is
        self._numbers = torch.arange(self._count)

    def step(self, inputs: Sequence[torch.Tensor], loss: Loss) -> list[float]:
        """Forward and backward of all micro-batches. `inputs` is read on the first stage, `loss` on the last.

        Returns the losses on the last stage, nothing on others.
        """
        self._loss = loss
        found: list[torch.Tensor] = []
        given = (torch.cat(list(inputs)),) if self.first else ()
        if self.last:
            self._schedule.step(*given, target=self._numbers, losses=found, return_outputs=False)
        else:
            self._schedule.step(*given, return_outputs=False)
        return [value.item() for value in found]

    def _of(self, output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        if self._loss is None:
            raise ValueError("a loss is asked for outside a step")
        return self._loss(output, int(number))
