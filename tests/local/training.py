"""A training run in the rank processes of a gang: executor, state and topology as a rank has them, called directly."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kuangchao_contracts.base import Contract
from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.oplogfile import Pinned
from kuangchao_contracts.parallel import Overlay, OverlayGroups
from kuangchao_contracts.plan import Axis, AxisGroups, ParallelPlan, Precision
from kuangchao_contracts.run import Empty
from kuangchao_worker.agent import volume
from kuangchao_worker.layers.execution.agreement import Agreement
from kuangchao_worker.layers.execution.context import ExecutionContext
from kuangchao_worker.layers.execution.executor import Executor
from kuangchao_worker.layers.execution.meter import Meter
from kuangchao_worker.layers.execution.metrics import LossLog
from kuangchao_worker.layers.state import export, rng
from kuangchao_worker.layers.state.files import ShardWriter
from kuangchao_worker.layers.state.service import StateService
from kuangchao_worker.layers.topology.guard import LinkGuard
from kuangchao_worker.layers.topology.service import TopologyService
from kuangchao_worker.pod.assignment import Assignment
from kuangchao_worker.rank.algorithm import TaskAlgorithm
from kuangchao_worker.rank.alike import require_alike
from kuangchao_worker.rank.ruled import ruled
from kuangchao_worker.rank.runnable import require_runnable, whole
from kuangchao_worker.rank.wiring import (
    make_batches,
    make_groups,
    make_parameters,
    make_pipe,
    stream,
)
from kuangchao_worker.tasks import Task, load_task
from tests.local.gang import Gang, Seat
from tests.unit.worker.fakegate import make_launch, make_plan

CPU = torch.device("cpu")
SMALL = {"layers": "2", "hidden": "32", "heads": "4", "kvHeads": "2", "ffn": "64", "sequence": "16", "windows": "96"}


def split(batch: int = 16, accumulation: int = 1, **sizes: Any) -> ParallelPlan:
    """A plan over these axes, innermost tensor, then context, data and pipeline; experts over neighbours in a stage."""
    groups, stride = [], 1
    for axis in (Axis.TENSOR, Axis.CONTEXT, Axis.DATA, Axis.PIPELINE):
        size = sizes.setdefault(axis.value, 1)
        groups.append(AxisGroups(axis=axis, size=size, stride=stride))
        stride *= size
    micro = batch // sizes["data"] // accumulation
    stage, expert = stride // sizes["pipeline"], sizes.get("expert", 1)
    spread = ((Overlay.EXPERT, expert, 1), (Overlay.EXPERT_DATA, stage // expert, expert)) if "expert" in sizes else ()
    overlays = tuple(OverlayGroups(axis=axis, size=size, stride=step) for axis, size, step in spread if size > 1)
    fields = {"micro_batch": micro, "groups": tuple(groups), "overlays": overlays, **sizes}
    return make_plan(stride, batch=batch, accumulation=accumulation, **fields)


@dataclass(frozen=True)
class Job:
    """What to train, and how."""

    plan: ParallelPlan
    task: str = "kuangchao_worker.tasks.text:transformer"
    args: dict[str, str] = field(default_factory=lambda: dict(SMALL))
    steps: int = 6
    double: bool = True
    precision: Precision = Precision.FP32
    clip_norm: float | None = None
    seed: int = 3
    folder: Path | None = None
    every: int | None = None
    restore: CheckpointRef | None = None

    def made(self) -> Task:
        task = replace(load_task(self.task, self.args), clip_norm=self.clip_norm)
        return doubled(task) if self.double else task

    def assignment(self, seat: Seat) -> Assignment:
        launch = make_launch(self.plan, self.task, steps=self.steps, seed=self.seed, checkpoint_every_steps=self.every)
        return Assignment(
            launch=launch, attempt=1, rank=seat.rank, local_rank=seat.rank, master_host="h", master_port=1,
            store_prefix="p", monitor="", token_directory="", trust_directory="", run_directory="",
            checkpoint_directory=str(self.folder) if self.folder else None,
        )  # fmt: skip


def doubled(task: Task) -> Task:
    """The task in fp64."""

    def loss(module: nn.Module, batch: Any) -> torch.Tensor:
        return task.loss(module, [part.double() if part.is_floating_point() else part for part in batch])

    def evaluate(module: nn.Module) -> dict[str, float]:
        return task.evaluate(deepcopy(module).float()) if task.evaluate is not None else {}

    return replace(task, model=lambda: task.model().double(), loss=loss, evaluate=evaluate)


@dataclass(frozen=True)
class Trained:
    """Mean loss and gradient norm of each step, final measurements, and on rank 0 the whole weights."""

    losses: list[float]
    norms: list[float]
    metrics: dict[str, str]
    weights: dict[str, torch.Tensor]
    operations: tuple[str, ...]


class Losses(LossLog):
    """Keeps the curve in memory."""

    def __init__(self) -> None:
        super().__init__(None, 1)
        self.curve: list[float] = []

    def add(self, step: int, loss: float, reported: Mapping[str, Any] = {}) -> None:
        self.curve.append(loss)


def train(gang: Gang, job: Job) -> Trained:
    """The run as rank 0 saw it; all ranks must have seen the same losses and norms."""
    found: list[Trained] = gang.run(job.plan.world_size, _train, job)
    for other in found[1:]:
        assert (other.losses, other.norms) == (found[0].losses, found[0].norms)
    return found[0]


def _train(seat: Seat, job: Job) -> Trained:
    plan = job.plan
    task = ruled(job.made(), plan, quiet=True)
    require_runnable(plan, task.rules)
    parameters = make_parameters(task, CPU, job.seed, plan, job.precision, rank=seat.rank)
    topology = TopologyService(plan.hash, seat.attempt)
    topology.build(seat.capability, seat.request(plan))
    agreement = Agreement(CPU, plan.pipeline)
    require_alike(agreement, parameters, task, plan)
    parameters.connect(topology.mesh, topology.experts)
    problems: list[str] = []
    writer = ShardWriter(seat.rank, lambda _, problem: problems.append(problem) if problem else None)
    state = StateService(parameters, seat.rank, job.seed, writer, lambda: Pinned(0, ""), stream(plan, seat.rank))
    state.close_to_others()
    guard = LinkGuard(lambda: f"rank {seat.rank}", lambda _: None)
    norms: list[float] = []

    def call(op: str, request: Contract) -> Contract:
        answer: Contract = getattr(state, op.split(".")[1])(seat.capability, request)
        if op == "state.submit_gradients":
            norms.append(float(answer.gradient_norm))  # type: ignore[attr-defined]
        return answer

    losses = Losses()
    executor = Executor(
        assignment=job.assignment(seat),
        call=call,
        context=ExecutionContext(),
        stop=lambda: False,
        report=lambda *_: None,
        algorithm=TaskAlgorithm(
            task, parameters, device=CPU, accumulation=plan.accumulation_steps,
            precision=job.precision, pipe=make_pipe(parameters, topology.mesh, plan, CPU),
            groups=make_groups(topology),
        ),
        batches=make_batches(task, plan, job.assignment(seat)),
        agreement=agreement,
        guard=guard.check,
        log=losses,
        meter=Meter(plan=plan, training=job.assignment(seat).launch.training),
    )  # fmt: skip
    rng.seed_all(job.seed * 1_000_003 + stream(plan, seat.rank))
    with guard:
        executor.run(job.restore)
    assert state.close(30)
    assert not problems, problems
    weights = parameters.complete(job.made().model).state_dict() if seat.rank == 0 else _help(parameters, job)
    topology.destroy(seat.capability, Empty())
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    return Trained(losses.curve, norms, executor.metrics, weights, executor.context.view().operations)


def _help(parameters: Any, job: Job) -> dict[str, torch.Tensor]:
    made = parameters.complete(job.made().model)
    assert made is None or whole(job.plan), "the whole model is on rank 0 only"
    return {}


def assert_exported(job: Job, checkpoint: CheckpointRef, trained: Trained) -> None:
    """What a checkpoint gives without its ranks is what they held, bit for bit."""
    assert job.folder is not None
    found = export.weights(export.opened(job.folder / checkpoint.path))
    assert found.keys() == trained.weights.keys()
    assert all(torch.equal(found[name], value) for name, value in trained.weights.items())


def committed(job: Job, step: int) -> CheckpointRef:
    """Seal a checkpoint that a run has written, as the agent of pod 0 does."""
    assert job.folder is not None
    working = job.folder / f"step-{step}.att-1.tmp"
    parts = volume.read_done(working, job.plan.world_size)
    assert not isinstance(parts, str), parts
    content = volume.manifest(make_launch(job.plan, job.task), step, 1, parts)
    return CheckpointRef(step=step, attempt=1, path=volume.seal(working, content).name, digest=content.content_hash())
