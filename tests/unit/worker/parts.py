"""Parts of a rank in this process, for tests: assignment, state, and an executor whose layers are called directly."""

import json
from pathlib import Path
from typing import Any

import torch

from kuangchao_contracts.capability import Capability
from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.oplogfile import Pinned
from kuangchao_contracts.ports.state import SaveRequest, SubmitGradients
from kuangchao_worker.agent import volume
from kuangchao_worker.layers.execution.agreement import Agreement
from kuangchao_worker.layers.execution.context import ExecutionContext
from kuangchao_worker.layers.execution.data import Batches
from kuangchao_worker.layers.execution.executor import Executor
from kuangchao_worker.layers.execution.meter import Meter
from kuangchao_worker.layers.execution.metrics import LossLog
from kuangchao_worker.layers.state import rng
from kuangchao_worker.layers.state.files import ShardWriter
from kuangchao_worker.layers.state.parameters import ParameterStore
from kuangchao_worker.layers.state.service import StateService
from kuangchao_worker.pod.assignment import Assignment
from kuangchao_worker.rank.algorithm import TaskAlgorithm
from kuangchao_worker.tasks import Task
from tests.unit.worker.fakegate import make_launch, make_plan

CAPABILITY = Capability.model_construct()


def assignment(folder: Path, world: int = 1, **launch: Any) -> Assignment:
    plan = make_plan(world, batch=launch.pop("batch", 16), accumulation=launch.pop("accumulation", 1))
    spec = make_launch(plan, "kuangchao_worker.tasks.mlp:mlp", **launch)
    return Assignment(
        launch=spec,
        attempt=1,
        rank=0,
        local_rank=0,
        master_host="127.0.0.1",
        master_port=1,
        store_prefix="p",
        monitor="",
        token_directory=str(folder / "token"),
        trust_directory=str(folder / "trust"),
        run_directory=str(folder),
        checkpoint_directory=str(folder / "job"),
    )


def make_state(task: Task, folder: Path, said: list[str | None] | None = None, seed: int = 0) -> StateService:
    rng.seed_all(seed)
    module = task.model()
    optimizer = task.made_optimizer(module.parameters())
    store = ParameterStore(module, optimizer, task.made_scheduler(optimizer))
    said = said if said is not None else []
    return StateService(store, 0, 0, ShardWriter(0, lambda _, problem: said.append(problem)), lambda: Pinned(0, ""))


def train(state: StateService, task: Task, first: int, last: int) -> list[float]:
    losses = []
    for step in range(first, last + 1):
        loss = state._store.compute(task.loss, task.dataset[torch.arange(16)])  # type: ignore[index]
        loss.backward()
        state.submit_gradients(CAPABILITY, SubmitGradients(step_id=step))
        losses.append(loss.item())
    return losses


def committed(folder: Path, step: int) -> CheckpointRef:
    working = folder / f"step-{step}.att-1.tmp"
    parts = volume.read_done(working, 1)
    assert not isinstance(parts, str), parts
    content = volume.manifest(make_launch(make_plan(1)), step, 1, parts)
    return CheckpointRef(step=step, attempt=1, path=volume.seal(working, content).name, digest=content.content_hash())


def save(state: StateService, folder: Path, step: int) -> None:
    state.save(CAPABILITY, SaveRequest(step=step, directory=str(folder / f"step-{step}.att-1.tmp")))
    assert state.close(30)


class Loop:
    """An executor whose layers are called directly and recorded."""

    def __init__(self, folder: Path, task: Task, *, stop_at: int = 10**9, **launch: Any) -> None:
        self.assigned = assignment(folder, **launch)
        (folder / "job").mkdir(exist_ok=True)
        self.state = make_state(task, folder)
        self.calls: list[str] = []
        self.context = ExecutionContext()
        spec = self.assigned.launch
        plan = spec.plan
        self.executor = Executor(
            assignment=self.assigned,
            call=self.call,
            context=self.context,
            report=lambda *_: None,
            stop=lambda: self.context.step + 1 >= stop_at,
            agreement=Agreement(torch.device("cpu")),
            batches=Batches(task.dataset, task.collate, plan, 0, 0),
            log=LossLog(folder / "job" / "metrics.jsonl", 1),
            meter=Meter(plan=plan, training=spec.training),
            algorithm=TaskAlgorithm(
                task,
                self.state._store,
                device=torch.device("cpu"),
                accumulation=plan.accumulation_steps,
                precision=spec.training.precision,
            ),
        )

    def call(self, op: str, request: Any) -> Any:
        self.calls.append(f"{op.split('.')[1]}:{getattr(request, 'step', getattr(request, 'step_id', ''))}")
        return getattr(self.state, op.split(".")[1])(CAPABILITY, request)


def curve(folder: Path) -> dict[int, str]:
    return {e["step"]: e["loss"] for e in map(json.loads, (folder / "job" / "metrics.jsonl").read_text().splitlines())}
