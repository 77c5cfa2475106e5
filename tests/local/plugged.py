"""A training run with a plug-in in the rank processes of a gang: calls go through a real gate under its own token."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim import SGD

from kuangchao_compression.plugin import compression
from kuangchao_contracts.oplogfile import Pinned
from kuangchao_contracts.plan import ParallelPlan, Precision
from kuangchao_worker.layers.execution.agreement import Agreement
from kuangchao_worker.layers.execution.context import ExecutionContext
from kuangchao_worker.layers.execution.data import Batches
from kuangchao_worker.layers.execution.executor import Executor
from kuangchao_worker.layers.execution.meter import Meter
from kuangchao_worker.layers.state import rng
from kuangchao_worker.layers.state.files import ShardWriter
from kuangchao_worker.layers.state.plugged import PluggedStore
from kuangchao_worker.layers.state.service import StateService
from kuangchao_worker.rank.algorithm import TaskAlgorithm
from kuangchao_worker.rank.wiring import make_parameters, stream
from kuangchao_worker.tasks import Task, load_task
from kuangchao_worker.tasks.digits import digits
from tests.local.gang import Gang, Seat, built
from tests.local.training import CPU, Job, Losses
from tests.unit.plugins.parts import Rank

DIGITS = "kuangchao_worker.tasks.digits:digits"


@dataclass(frozen=True)
class Plugged(Job):
    """A job with options of the compression plug-in; None: without any plug-in."""

    task: str = DIGITS
    args: dict[str, str] = None  # type: ignore[assignment]  # the task's own
    double: bool = False
    options: dict[str, str] | None = None
    rate: float | None = None
    fault: str = ""
    """Planted: the memory of a checkpoint is `forgotten` or `renamed`; rank 1 has `other` options, or payloads
    that are one short (`uneven`)."""

    def made(self) -> Task:
        task = load_task(self.task, self.args or {})
        rate = self.rate
        return task if rate is None else replace(task, optimizer=lambda parameters: SGD(parameters, lr=rate))


@dataclass(frozen=True)
class Outcome:
    """What rank 0 saw."""

    losses: list[float]
    metrics: dict[str, str]
    weights: dict[str, torch.Tensor]
    traffic: tuple[int, int]
    calls: int
    memory: dict[str, torch.Tensor]


def looked_up(args: dict[str, str]) -> Task:
    """Digits whose pixels are rows of a table, with gradients of the rows that were looked up."""
    task = digits(args)

    def loss(module: torch.nn.Module, batch: Any) -> torch.Tensor:
        images, labels = batch
        return torch.nn.functional.cross_entropy(module((images * 15).long()), labels)

    def model() -> torch.nn.Module:
        table = torch.nn.Embedding(16, 4, sparse=True)
        return torch.nn.Sequential(table, torch.nn.Flatten(), torch.nn.Linear(64 * 4, 10))

    return replace(task, model=model, loss=loss, optimizer=lambda ps: SGD(ps, lr=0.1), evaluate=None)


def train(gang: Gang, job: Plugged) -> Outcome:
    found: list[Outcome] = gang.run(job.plan.world_size, _linked, job)
    for other in found[1:]:
        assert other.losses == found[0].losses
        assert all(torch.equal(other.weights[name], weights) for name, weights in found[0].weights.items())
    return found[0]


def _linked(seat: Seat, job: Plugged) -> Outcome:
    return built(seat, job.plan, _train, job)  # type: ignore[no-any-return]


def _train(seat: Seat, mesh: Any, plan: ParallelPlan, job: Plugged) -> Outcome:
    task = job.made()
    parameters: Any = make_parameters(task, CPU, job.seed, plan)
    rank = None
    if job.options is not None:
        rank = _rank(seat, job, job.options)
        parameters = PluggedStore(parameters, rank.service, rank.call)
    parameters.connect(mesh)
    problems: list[str] = []
    writer = ShardWriter(seat.rank, lambda _, problem: problems.append(problem) if problem else None)
    state = StateService(parameters, seat.rank, job.seed, writer, lambda: Pinned(0, ""), stream(plan, seat.rank))
    losses = Losses()
    executor = Executor(
        assignment=job.assignment(seat),
        call=lambda op, request: getattr(state, op.split(".")[1])(seat.capability, request),
        context=ExecutionContext(),
        stop=lambda: False,
        report=lambda *_: None,
        algorithm=TaskAlgorithm(
            task, parameters, device=CPU, accumulation=plan.accumulation_steps, precision=Precision.FP32
        ),
        batches=Batches(task.dataset, task.collate, plan, seat.rank, job.seed),
        agreement=Agreement(CPU, 1),
        log=losses,
        meter=Meter(plan=plan, training=job.assignment(seat).launch.training),
    )
    rng.seed_all(job.seed * 1_000_003 + stream(plan, seat.rank))
    executor.run(job.restore)
    assert state.close(30)
    assert not problems, problems
    weights = {name: tensor.clone() for name, tensor in parameters.module.state_dict().items()}
    if rank is None:
        return Outcome(losses.curve, executor.metrics, weights, (0, 0), 0, {})
    memory = {name: tensor.clone() for name, tensor in rank.service._codec.memory().items()}
    traffic = parameters.traffic
    told = (traffic.gradient_bytes, traffic.coded_bytes)
    assert parameters.compression() == (told[0] / told[1] if told[1] else 0), "one rank sends nothing"
    return Outcome(losses.curve, executor.metrics, weights, told, rank.log.count, memory)


def _rank(seat: Seat, job: Plugged, options: dict[str, str]) -> Rank:
    if job.fault == "other" and seat.rank == 1:
        options = {**options, "block": "4096"}
    rank = Rank("compression", compression(options), options, seat.rank, seat.world, job.seed)
    if job.fault == "uneven" and seat.rank == 1:
        codec = rank.service._codec
        whole = codec.encode
        codec.encode = lambda step, name, gradient: whole(step, name, gradient)[:-1]  # type: ignore[method-assign]  # planted
    remember = rank.service.remember
    if job.fault == "forgotten":
        rank.service.remember = lambda memory: None  # type: ignore[method-assign]  # planted
    if job.fault == "renamed":
        rank.service.remember = lambda memory: remember({"ghost": next(iter(memory.values()))})  # type: ignore[method-assign]  # planted
    return rank
