"""Parts of a rank in this process: order of data, groups, agreement, state, executor, and its gate."""

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset

from kuangchao_contracts import errors as e
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.errors import PeerLostError
from kuangchao_contracts.oplog import OperationLog
from kuangchao_contracts.plan import Axis, AxisGroups
from kuangchao_contracts.ports.execution import ContextView
from kuangchao_contracts.ports.state import RestoreRequest, SaveRequest, SnapshotRequest, SubmitGradients
from kuangchao_contracts.ports.topology import BuildRequest
from kuangchao_contracts.run import Empty
from kuangchao_worker.agent import volume
from kuangchao_worker.layers.execution.data import Batches, SampleOrder
from kuangchao_worker.layers.execution.executor import Executor, Outcome
from kuangchao_worker.layers.execution.metrics import LossLog
from kuangchao_worker.layers.state import rng
from kuangchao_worker.layers.state.files import ShardWriter
from kuangchao_worker.layers.state.parameters import ParameterStore
from kuangchao_worker.layers.state.service import StateService
from kuangchao_worker.layers.topology.decide import GroupSpec, TopologyCycleError, build_order, groups_of
from kuangchao_worker.layers.topology.service import TopologyService
from kuangchao_worker.pod.assignment import Assignment
from kuangchao_worker.rank.authority import GRACE_SECONDS, Authority
from kuangchao_worker.rank.failure import describe, kind_of
from kuangchao_worker.rank.wiring import require_data_parallel
from kuangchao_worker.tasks import Task, TaskNotFoundError, load_task
from kuangchao_worker.tasks.digits import digits
from kuangchao_worker.tasks.mlp import mlp
from tests.unit.worker.fakegate import UID, Issuer, make_launch, make_plan

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


# ---- order of samples


@given(seed=st.integers(0, 2**31 - 1), size=st.integers(1, 50), batch=st.integers(1, 40), steps=st.integers(1, 6))
def test_stream_is_whole_epochs_one_after_the_other(seed: int, size: int, batch: int, steps: int) -> None:
    order = SampleOrder(seed, size)
    stream = torch.cat([order.samples(step * batch, batch) for step in range(steps)]).tolist()
    for start in range(0, len(stream) - size + 1, size):
        assert sorted(stream[start : start + size]) == list(range(size))
    # a rank that joins later sees the same, without anything that was stored
    assert SampleOrder(seed, size).samples((steps - 1) * batch, batch).tolist() == stream[-batch:]


@given(world=st.sampled_from([1, 2, 4]), accumulation=st.sampled_from([1, 2, 4]), step=st.integers(1, 30))
def test_ranks_share_a_step_without_gap_or_overlap(world: int, accumulation: int, step: int) -> None:
    plan = make_plan(world, batch=16, accumulation=accumulation)
    task = mlp({"samples": "50"})
    parts = [Batches(task.dataset, task.collate, plan, rank, 7).indices(step) for rank in range(world)]
    assert all(len(micro) == accumulation for micro in parts)
    together = torch.cat([indices for micro in parts for indices in micro])
    assert together.tolist() == SampleOrder(7, 50).samples((step - 1) * 16, 16).tolist()


def test_epochs_and_seeds_differ_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    order = SampleOrder(3, 100)
    epochs = [order.samples(i * 100, 100).tolist() for i in range(2)]
    assert epochs[0] != epochs[1]
    assert epochs[0] != SampleOrder(4, 100).samples(0, 100).tolist()
    assert torch.equal(before, torch.get_rng_state())


def test_map_style_and_tensor_datasets_give_equal_batches() -> None:
    task = mlp({"samples": "20"})

    class Plain(Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            return task.dataset[index]

    fast, slow = (Batches(data, task.collate, make_plan(1, batch=8), 0, 0) for data in (task.dataset, Plain()))
    for a, b in zip(fast.load(fast.indices(1)[0]), slow.load(slow.indices(1)[0]), strict=True):
        assert torch.equal(a, b)


# ---- groups


def test_groups_cover_the_world_and_come_after_what_they_need() -> None:
    axes = (
        AxisGroups(axis=Axis.DATA, size=2, stride=4),
        AxisGroups(axis=Axis.TENSOR, size=2, stride=1),
        AxisGroups(axis=Axis.PIPELINE, size=2, stride=2),
    )
    plan = make_plan(8, batch=8, groups=axes)
    order = build_order(reversed(groups_of(plan)))
    assert [spec.name for spec in order] == ["world", "tensor", "pipeline", "data"]
    for spec in order:
        assert sorted(rank for ranks in spec.members for rank in ranks) == list(range(8))
    assert order[1].members == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert order[3].members == ((0, 4), (1, 5), (2, 6), (3, 7))
    for spec in order[1:]:
        axis = Axis(spec.name)
        for ranks in spec.members:
            assert [plan.coordinate(rank, axis) for rank in ranks] == list(range(len(ranks)))


def test_cycle_is_an_error_that_names_it() -> None:
    specs = [GroupSpec("a", ((0,),), ("b",)), GroupSpec("b", ((0,),), ("c",)), GroupSpec("c", ((0,),), ("a",))]
    with pytest.raises(TopologyCycleError, match=r"[abc] -> [abc] -> [abc] -> [abc]"):
        build_order(specs)
    with pytest.raises(TopologyCycleError, match="'x'"):
        build_order([GroupSpec("a", ((0,),), ("x",))])


def test_links_are_built_only_for_the_assigned_plan_and_attempt() -> None:
    plan = make_plan(1)
    service = TopologyService(plan.hash, 2)
    common = {"rank": 0, "master_host": "127.0.0.1", "master_port": 1, "store_prefix": "p", "timeout_seconds": 1}
    for request in (BuildRequest(plan=plan, attempt=1, **common), BuildRequest(plan=make_plan(2), attempt=2, **common)):
        with pytest.raises(e.ConflictError):
            service.build(CAPABILITY, request)


def test_plan_that_this_worker_cannot_carry_out_is_refused() -> None:
    with pytest.raises(e.InvalidInputError, match=r"plan\.tensor=2"):
        require_data_parallel(make_plan(2, tensor=2))


# ---- state


def make_state(task: Task, folder: Path, said: list[str | None] | None = None, seed: int = 0) -> StateService:
    rng.seed_all(seed)
    module = task.model()
    optimizer = task.optimizer(module.parameters())
    store = ParameterStore(module, optimizer, task.scheduler(optimizer) if task.scheduler else None)
    said = said if said is not None else []
    return StateService(store, 0, 0, ShardWriter(0, lambda _, problem: said.append(problem)), lambda: "0:")


def train(state: StateService, task: Task, first: int, last: int) -> list[float]:
    losses = []
    for step in range(first, last + 1):
        loss = task.loss(state._store.forward(), task.dataset[torch.arange(16)])  # type: ignore[index]
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


def test_steps_come_in_order_and_once(tmp_path: Path) -> None:
    task = mlp({})
    state = make_state(task, tmp_path)
    train(state, task, 1, 2)
    for wrong in (0, 1, 2, 4):
        with pytest.raises(e.StepOrderError):
            state.submit_gradients(CAPABILITY, SubmitGradients(step_id=wrong))
    with pytest.raises(e.StepOrderError):
        state.save(CAPABILITY, SaveRequest(step=1, directory=str(tmp_path)))


@pytest.mark.parametrize("at", [1, 4, 7])
def test_restored_state_goes_on_bit_for_bit(tmp_path: Path, at: int) -> None:
    task = mlp({"dropout": "0.5"})
    state = make_state(task, tmp_path)
    train(state, task, 1, at)
    save(state, tmp_path, at)
    expected = train(state, task, at + 1, 9)
    other = make_state(task, tmp_path, seed=99)
    ref = committed(tmp_path, at)
    other.restore(CAPABILITY, RestoreRequest(checkpoint=ref, directory=str(tmp_path / ref.path)))
    assert train(other, task, at + 1, 9) == expected
    digests = [s.snapshot(CAPABILITY, SnapshotRequest()).sha256 for s in (state, other)]
    assert digests[0] == digests[1]


def test_saved_copy_does_not_change_with_later_steps(tmp_path: Path) -> None:
    """CPU tensors must be copied before `save` returns, not when the thread gets to them."""
    task = mlp({})
    state = make_state(task, tmp_path)
    train(state, task, 1, 1)
    at_save = state.snapshot(CAPABILITY, SnapshotRequest()).sha256
    state.save(CAPABILITY, SaveRequest(step=1, directory=str(tmp_path / "step-1.att-1.tmp")))
    train(state, task, 2, 5)
    assert state.close(30)
    ref = committed(tmp_path, 1)
    state.restore(CAPABILITY, RestoreRequest(checkpoint=ref, directory=str(tmp_path / ref.path)))
    assert state.snapshot(CAPABILITY, SnapshotRequest()).sha256 == at_save


@pytest.mark.parametrize("part", ["module", "optimizer", "scheduler", "rng"])
def test_every_saved_part_matters(tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of curves would notice each part that a checkpoint left out."""
    task = mlp({"dropout": "0.5", "horizon": "9"})
    state = make_state(task, tmp_path)
    train(state, task, 1, 4)
    save(state, tmp_path, 4)
    expected = train(state, task, 5, 9)
    other = make_state(task, tmp_path, seed=99)
    ref = committed(tmp_path, 4)
    load = ParameterStore.load

    def forgetful(self: ParameterStore, saved: dict[str, Any]) -> None:
        own = self.state()
        load(self, {**saved, part: own[part]} if part in own else saved)

    monkeypatch.setattr(ParameterStore, "load", forgetful)
    if part == "rng":
        monkeypatch.setattr(rng, "restore", lambda _: None)
    other.restore(CAPABILITY, RestoreRequest(checkpoint=ref, directory=str(tmp_path / ref.path)))
    assert train(other, task, 5, 9) != expected


def test_changed_file_and_foreign_manifest_are_refused(tmp_path: Path) -> None:
    task = mlp({})
    state = make_state(task, tmp_path)
    train(state, task, 1, 1)
    save(state, tmp_path, 1)
    ref = committed(tmp_path, 1)
    where = tmp_path / ref.path
    with pytest.raises(e.CheckpointCorruptError, match="not the committed one"):
        state.restore(CAPABILITY, RestoreRequest(checkpoint=ref.replace(digest="0" * 64), directory=str(where)))
    raw = bytearray((where / "shared.pt").read_bytes())
    raw[-1] ^= 1
    (where / "shared.pt").write_bytes(raw)
    with pytest.raises(e.CheckpointCorruptError, match="does not match its digest"):
        state.restore(CAPABILITY, RestoreRequest(checkpoint=ref, directory=str(where)))


def test_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    task = mlp({})
    state = make_state(task, tmp_path)
    train(state, task, 1, 1)
    save(state, tmp_path, 1)
    ref = committed(tmp_path, 1)
    with pytest.raises(e.StorageError, match="another model"):
        make_state(mlp({"hidden": "8"}), tmp_path).restore(
            CAPABILITY, RestoreRequest(checkpoint=ref, directory=str(tmp_path / ref.path))
        )


def test_failed_save_is_reported_and_leaves_no_file(tmp_path: Path) -> None:
    task, said = mlp({}), []
    state = make_state(task, tmp_path, said)
    (tmp_path / "full").write_text("a file where a directory should be")
    train(state, task, 1, 1)
    state.save(CAPABILITY, SaveRequest(step=1, directory=str(tmp_path / "full" / "step-1.att-1.tmp")))
    assert state.close(30)
    assert "NotADirectoryError" in said[0]
    train(state, task, 2, 2)


def test_all_generators_are_captured() -> None:
    rng.seed_all(5)
    state = rng.capture()

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(1).item()

    first = draw()
    rng.restore(torch.load(_saved(state), weights_only=True))
    assert draw() == first


def _saved(value: Any) -> Any:
    import io

    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


# ---- executor


class Loop:
    """An executor whose layers are called directly and recorded."""

    def __init__(self, folder: Path, task: Task, *, stop_at: int = 10**9, **launch: Any) -> None:
        from kuangchao_worker.layers.execution.agreement import Agreement
        from kuangchao_worker.layers.execution.context import ExecutionContext
        from kuangchao_worker.rank.algorithm import TaskAlgorithm

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
            algorithm=TaskAlgorithm(
                task,
                self.state._store,
                rank=0,
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


def test_digits_learn_and_are_measured(tmp_path: Path) -> None:
    loop = Loop(tmp_path, digits({}), steps=300, batch=64)
    assert loop.executor.run(None) is Outcome.FINISHED
    assert float(loop.executor.metrics["accuracy"]) >= 0.95
    assert loop.executor.metrics["loss"]
    view = loop.context.view()
    assert isinstance(view, ContextView)
    assert (view.step, view.samples, view.epoch, view.section) == (300, 19_200, 13, "finished")
    assert loop.calls[-1] == "save:300", "the last state is saved too"


def test_checkpoints_follow_the_policy(tmp_path: Path) -> None:
    loop = Loop(tmp_path, mlp({}), steps=10, checkpoint_every_steps=4)
    loop.executor.run(None)
    assert [c for c in loop.calls if c.startswith("save")] == ["save:4", "save:8", "save:10"]
    timed = Loop(tmp_path, mlp({}), steps=6, checkpoint_every_seconds=30)
    ticks = iter(range(0, 10_000, 10))
    timed.executor.clock = lambda: float(next(ticks))
    timed.executor.run(None)
    saves = [int(c.split(":")[1]) for c in timed.calls if c.startswith("save")]
    assert saves[:-1] and saves[-1] == 6 and len(saves) < 6


def test_stop_saves_the_step_and_ends(tmp_path: Path) -> None:
    loop = Loop(tmp_path, mlp({}), steps=10, stop_at=3)
    assert loop.executor.run(None) is Outcome.DRAINED
    assert loop.calls[-2:] == ["submit_gradients:3", "save:3"]
    late = Loop(tmp_path, mlp({}), steps=10, stop_at=10)
    assert late.executor.run(None) is Outcome.FINISHED, "there was nothing left to do"


def test_accumulated_micro_batches_equal_one_batch(tmp_path: Path) -> None:
    curves = []
    for accumulation in (1, 4):
        folder = tmp_path / str(accumulation)
        folder.mkdir()
        Loop(folder, mlp({"dropout": "0"}), steps=8, accumulation=accumulation).executor.run(None)
        curves.append([float.fromhex(v) for v in curve(folder).values()])
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)


def test_curve_survives_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "attempt": 1, "loss": "0x1p0"}\n{"step": 2, "att')
    log = LossLog(path, 2)
    log.add(2, 0.5)
    log.flush()
    lines = path.read_text().splitlines()
    assert json.loads(lines[-1]) == {"step": 2, "attempt": 2, "loss": (0.5).hex(), "lossValue": 0.5}
    assert sum(line.endswith("}") for line in lines) == 2
    lost = LossLog(tmp_path / "no" / "metrics.jsonl", 1)
    lost.add(1, 0.5)
    lost.flush()
    assert "No such file" in (lost.problem or "")


# ---- the rank's gate


@pytest.fixture
def pod(tmp_path: Path) -> tuple[Issuer, Assignment]:
    issuer = Issuer()
    issuer.write_trust(tmp_path / "trust")
    (tmp_path / "token").mkdir()
    (tmp_path / "token" / "bundle.json").write_bytes(issuer.bundle("pod-0", 1).canonical())
    return issuer, assignment(tmp_path)


def serve(assigned: Assignment, log: OperationLog, **clocks: Any) -> Authority:
    authority = Authority(assigned, log, **clocks)
    authority.serve([make_state(mlp({}), Path(assigned.run_directory))])
    return authority


def test_calls_are_verified_and_chained(pod: tuple[Issuer, Assignment]) -> None:
    log = OperationLog()
    start = log.head
    authority = serve(pod[1], log)
    request = SnapshotRequest(want_digest=False)
    authority.call("state.snapshot", request)
    assert log.count == 1
    assert log.head != start


def test_call_without_right_is_refused_and_kept(pod: tuple[Issuer, Assignment]) -> None:
    log = OperationLog()
    authority = serve(pod[1], log)
    with pytest.raises(e.UnknownOperationError):
        authority.call("execution.join", Empty())
    assert [record.reason for record in log.take_denials()] == ["UnknownOperation"]


def test_tokens_of_another_attempt_are_not_used(pod: tuple[Issuer, Assignment]) -> None:
    issuer, assigned = pod
    authority = serve(assigned, OperationLog())
    authority.call("state.snapshot", SnapshotRequest(want_digest=False))
    bundle = Path(assigned.token_directory) / "bundle.json"
    bundle.write_bytes(issuer.bundle("pod-0", 2).canonical())
    authority._refresh()
    authority.call("state.snapshot", SnapshotRequest(want_digest=False))
    with pytest.raises(e.UnavailableError):
        serve(assigned, OperationLog()).call("state.snapshot", SnapshotRequest(want_digest=False))


def test_outage_does_not_stop_training_but_has_an_end(pod: tuple[Issuer, Assignment]) -> None:
    now = [time.time()]
    authority = serve(pod[1], OperationLog(), clock=lambda: now[0], monotonic=lambda: now[0])
    request = SnapshotRequest(want_digest=False)
    for later in (0, 299, 900, GRACE_SECONDS):
        now[0] = time.time() + later
        authority.call("state.snapshot", request)
    now[0] = time.time() + 300 + GRACE_SECONDS + 10
    with pytest.raises(e.ExpiredSignatureError):
        authority.call("state.snapshot", request)


# ---- failures and tasks


def test_kinds_of_failure() -> None:
    assert kind_of(ValueError("x")) == "ValueError"
    assert kind_of(e.CheckpointCorruptError("x")) == "CheckpointCorrupt"
    assert kind_of(e.InvalidInputError("taskArgs.hidden", "x", "is not int")) == "InvalidSpec"
    assert kind_of(TaskNotFoundError("x")) == "TaskNotFound"
    gloo = RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:1")
    assert kind_of(gloo) == PeerLostError.code == "PeerLost"
    assert kind_of(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) == "RuntimeError"


def test_failure_says_where_and_fits() -> None:
    try:
        raise ValueError("x" * 5000)
    except ValueError as error:
        text = describe(error)
    assert len(text) <= 1024
    assert "test_rank.py" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_package.x:make", "no module 'no_such_package'"),
        ("kuangchao_worker.tasks.digits:nothing", "digits"),
        ("kuangchao_worker.tasks.nothing:x", "kuangchao_worker.tasks.nothing"),
        ("builtins:dict", "dict, not a Task"),
    ],
)
def test_task_that_is_not_there_is_named(name: str, words: str) -> None:
    with pytest.raises(TaskNotFoundError, match=words):
        load_task(name, {})


def test_broken_import_of_a_task_is_the_users_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_task.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        load_task("broken_task:make", {})


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({"hidden": "many"}, "taskArgs.hidden"),
        ({"hidden": "0"}, "taskArgs.hidden"),
        ({"hiden": "8"}, "taskArgs.hiden"),
        ({"dropout": "nan"}, "taskArgs.dropout"),
    ],
)
def test_task_arguments_are_checked(args: dict[str, str], field: str) -> None:
    with pytest.raises(e.InvalidInputError) as error:
        mlp(args)
    assert error.value.field == field


def test_user_code_sees_a_module_and_a_batch_only(tmp_path: Path) -> None:
    seen: list[tuple[Any, ...]] = []
    task = mlp({})

    def loss(*given: Any) -> torch.Tensor:
        seen.append(given)
        return task.loss(*given)

    Loop(tmp_path, replace(task, loss=loss), steps=1).executor.run(None)
    module, batch = seen[0]
    assert isinstance(module, nn.Module)
    assert all(isinstance(tensor, torch.Tensor) for tensor in batch)
    assert UID not in repr(seen)
