"""Puts the parts of a rank together. The only place that sees several layers at once; it decides nothing itself."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import torch
from torch.distributed.device_mesh import DeviceMesh

from kuangchao_contracts.errors import StorageError
from kuangchao_contracts.oplog import OperationLog
from kuangchao_contracts.oplogfile import LogFile
from kuangchao_contracts.plan import Axis, ParallelPlan, Precision, Recompute
from kuangchao_contracts.ports.base import Port
from kuangchao_contracts.ports.topology import BuildRequest
from kuangchao_contracts.run import Empty
from kuangchao_worker.layers.execution.agreement import Agreement
from kuangchao_worker.layers.execution.context import ExecutionContext
from kuangchao_worker.layers.execution.data import Batches
from kuangchao_worker.layers.execution.executor import Executor, Outcome
from kuangchao_worker.layers.execution.meter import Meter
from kuangchao_worker.layers.execution.metrics import LossLog
from kuangchao_worker.layers.execution.reported import Reported
from kuangchao_worker.layers.execution.service import ExecutionService
from kuangchao_worker.layers.state import rng
from kuangchao_worker.layers.state.files import ShardWriter
from kuangchao_worker.layers.state.parameters import ParameterStore
from kuangchao_worker.layers.state.service import StateService
from kuangchao_worker.layers.state.update import LossScale, UpdateRule
from kuangchao_worker.layers.topology.guard import LinkGuard
from kuangchao_worker.layers.topology.service import TopologyService
from kuangchao_worker.parallel.groups import Groups
from kuangchao_worker.pod.assignment import Assignment
from kuangchao_worker.pod.channel import RankChannel, RankMessage
from kuangchao_worker.rank.algorithm import TaskAlgorithm
from kuangchao_worker.rank.alike import require_alike
from kuangchao_worker.rank.authority import Authority
from kuangchao_worker.rank.reporting import GateReporter
from kuangchao_worker.rank.ruled import ruled
from kuangchao_worker.rank.runnable import require_debuggable, require_runnable, whole
from kuangchao_worker.reports import report
from kuangchao_worker.tasks import Task, load_task
from kuangchao_worker.weights import readable

if TYPE_CHECKING:
    from kuangchao_worker.layers.execution.pipe import PipeRunner
    from kuangchao_worker.layers.state.handing import Share
    from kuangchao_worker.layers.state.plugged import PluggedStore
    from kuangchao_worker.layers.state.sharded import ShardedStore

    Parameters = ParameterStore | ShardedStore | PluggedStore

LAST_WRITE_SECONDS: Final = 1_800.0
METRICS_FILE: Final = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class _Process:
    """What a rank has before any code of the user is imported."""

    assignment: Assignment
    channel: RankChannel
    stop: Callable[[], bool]
    oplog: OperationLog
    authority: Authority
    context: ExecutionContext
    guard: LinkGuard


def run_rank(assignment: Assignment, channel: RankChannel, stop: Callable[[], bool]) -> Outcome:
    """Train this rank's share to the end, or until all ranks agree to stop. Raises whatever goes wrong."""
    with OperationLog() as oplog:
        reporter = GateReporter(channel, assignment.rank, assignment.attempt, oplog)
        authority, context = Authority(assignment, oplog, reporter), ExecutionContext()
        # before any code of the user is imported: it may take functions of torch by name
        with LinkGuard(
            lambda: f"rank {assignment.rank}, step {context.step + 1}",
            lambda error: authority.refused("topology.build", error),
        ) as guard:
            outcome = _train(_Process(assignment, channel, stop, oplog, authority, context, guard))
        reporter.notes()
        return outcome


def _train(process: _Process) -> Outcome:
    assignment, authority, launch = process.assignment, process.authority, process.assignment.launch
    plan, training, rank = launch.plan, launch.training, assignment.rank
    device = prepare(assignment)
    task = ruled(load_task(launch.task or "", launch.task_args), plan, quiet=rank != 0)
    require_runnable(plan, task.rules)
    require_debuggable(plan, gloo=device.type == "cpu")
    store = make_parameters(task, device, training.seed, plan, training.precision, rank=rank)
    parameters, plugins = between(store, assignment, authority)
    state = make_state(assignment, parameters, process.channel, process.oplog)
    topology = TopologyService(plan.hash, assignment.attempt, process.stop)
    authority.serve((topology, state, ExecutionService(process.context), *plugins))
    process.channel.progress(0, "build")
    authority.call("topology.build", build_request(assignment))
    # only now: that there are links says that the agent of pod 0 has found the directory to be this job's
    process.oplog.keep_in(log_file(assignment))
    agreement = Agreement(device, plan.pipeline)
    require_alike(agreement, parameters, task, plan)
    parameters.connect(topology.mesh, topology.experts)
    state.close_to_others()
    executor = _make_executor(process, task, parameters, topology, agreement, device)
    # a restored checkpoint replaces this
    rng.seed_all(training.seed * 1_000_003 + stream(plan, rank))
    with readable(state.reading), report.heard_by(executor.reported.note):
        outcome = executor.run(assignment.restore)
    finish(state, process.channel, rank, executor, process.oplog)
    authority.call("topology.destroy", Empty())
    return outcome


def _make_executor(
    process: _Process,
    task: Task,
    parameters: "Parameters",
    topology: TopologyService,
    agreement: Agreement,
    device: torch.device,
) -> Executor:
    """The loop over links that are built and parameters that are connected."""
    assignment, plan = process.assignment, process.assignment.launch.plan
    algorithm = TaskAlgorithm(
        task,
        parameters,
        device=device,
        accumulation=plan.accumulation_steps,
        precision=assignment.launch.training.precision,
        pipe=make_pipe(parameters, topology.mesh, plan, device),
        groups=make_groups(topology),
    )
    return Executor(
        assignment=assignment,
        call=process.authority.call,
        context=process.context,
        stop=process.stop,
        report=process.channel.progress,
        algorithm=algorithm,
        batches=make_batches(task, plan, assignment),
        agreement=agreement,
        guard=process.guard.check,
        log=LossLog(metrics_path(assignment), assignment.attempt),
        meter=make_meter(assignment, device, parameters),
        # people are shown what rank 0 says, as of scripts
        reported=Reported(kept=assignment.rank == 0),
    )


def build_request(assignment: Assignment) -> BuildRequest:
    """What topology is asked to build."""
    return BuildRequest(
        plan=assignment.launch.plan,
        attempt=assignment.attempt,
        rank=assignment.rank,
        master_host=assignment.master_host,
        master_port=assignment.master_port,
        store_prefix=assignment.store_prefix,
    )


def stream(plan: ParallelPlan, rank: int) -> int:
    """Whose random numbers a rank draws: its own, but ranks of one tensor group must drop out the same."""
    strides = [group.stride for group in plan.groups if group.axis is Axis.TENSOR]
    return rank - sum(plan.coordinate(rank, Axis.TENSOR) * stride for stride in strides)


def prepare(assignment: Assignment) -> torch.device:
    """Make the process deterministic and choose its device."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # or torch fills whatever memory it hands out, which makes each step write its tensors twice
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # torch's module class
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    # the order of a sum depends on the number of threads, so it is fixed by the job and not by the machine
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(assignment.local_rank)
    return torch.device("cuda", assignment.local_rank)


def make_parameters(
    task: Task,
    device: torch.device,
    seed: int,
    plan: ParallelPlan,
    precision: Precision = Precision.FP32,
    *,
    rank: int | None = None,
) -> "ParameterStore | ShardedStore":
    """Module, optimizer and schedule, with the same first weights on every rank.

    Where the plan splits the model, `rank` makes its share of them, and gets others' when the store is connected; None
    makes all.
    """
    rule = UpdateRule(task.clip_norm, LossScale() if precision is Precision.FP16 else None)
    rng.seed_all(seed)
    share: Share | None = None
    if whole(plan) or rank is None or device.type != "cpu":
        module = task.model().to(device)
    else:
        # imported where a plan wants it, here and below: most plans do not, and torch brings a second's worth along
        from kuangchao_worker.layers.state.making import make_share

        module, share = make_share(task.model, lambda: rng.seed_all(seed), rank, plan.world_size)
    if plan.recompute is not Recompute.NONE:
        from kuangchao_worker.layers.state.recompute import recompute

        recompute(module, task.rules, plan.recompute)
    if not whole(plan):
        from kuangchao_worker.layers.state.sharded import ShardedStore

        return ShardedStore(module, task.made_optimizer, task.made_scheduler, task.rules, plan, rule, share)
    optimizer = task.made_optimizer(module.parameters())
    return ParameterStore(module, optimizer, task.made_scheduler(optimizer), rule)


def between(
    store: "ParameterStore | ShardedStore", assignment: Assignment, authority: Authority
) -> "tuple[Parameters, tuple[Port, ...]]":
    """The store behind the plug-in that the job names, and that plug-in. Without one: no import, nothing per step."""
    if not assignment.launch.plugins:
        return store, ()
    from kuangchao_worker.rank.plugging import plugged

    parameters, plugin = plugged(store, assignment, authority.call)
    return parameters, (plugin,)


def make_pipe(
    parameters: "Parameters", mesh: DeviceMesh | None, plan: ParallelPlan, device: torch.device
) -> "PipeRunner | None":
    """What runs this rank's stages; None where the plan has none."""
    if plan.pipeline == 1 or mesh is None:
        return None
    from kuangchao_worker.layers.execution.pipe import PipeRunner
    from kuangchao_worker.layers.state.sharded import ShardedStore

    assert isinstance(parameters, ShardedStore), "what is cut into stages is kept in pieces"
    return PipeRunner(parameters.stages(), mesh, plan, device)


def make_groups(topology: TopologyService) -> Groups:
    """Over which ranks attention and experts go, as the links are."""
    return Groups(context=topology.groups.get(Axis.CONTEXT.value), expert=topology.groups.get(Axis.EXPERT.value))


def make_batches(task: Task, plan: ParallelPlan, assignment: Assignment) -> Batches:
    """What this rank reads."""
    seed = assignment.launch.training.seed
    return Batches(task.dataset, task.collate, plan, assignment.rank, seed, task.rules.tokens)


def make_meter(assignment: Assignment, device: torch.device, parameters: "Parameters") -> Meter:
    """What measures this rank; traffic on rank 0 only, whose figures are the ones that people see."""
    traffic = None
    if assignment.rank == 0 and device.type == "cpu" and assignment.launch.plan.world_size > 1:
        from kuangchao_worker.layers.execution.traffic import TrafficSampler

        traffic = TrafficSampler()
    return Meter(
        plan=assignment.launch.plan,
        training=assignment.launch.training,
        traffic=traffic,
        accelerator=torch.cuda.max_memory_allocated if device.type == "cuda" else lambda: 0,
        # with a plug-in the store is the one that `between` has put before it
        compression=cast("PluggedStore", parameters).compression if assignment.launch.plugins else lambda: 0.0,
    )


def make_state(
    assignment: Assignment, parameters: "Parameters", channel: RankChannel, oplog: OperationLog
) -> StateService:
    """The state layer, telling the agent of every part of a checkpoint that it has written or could not write."""

    def notify(directory: Path, problem: str | None) -> None:
        where = str(directory)
        channel.reliable(
            RankMessage(rank=assignment.rank, saved=where)
            if problem is None
            else RankMessage(rank=assignment.rank, save_failed=where, error=problem)
        )

    writer, launch = ShardWriter(assignment.rank, notify), assignment.launch
    drawn = stream(launch.plan, assignment.rank)
    return StateService(parameters, assignment.rank, launch.training.seed, writer, oplog.pin, drawn)


def log_file(assignment: Assignment) -> LogFile | None:
    """The file of the operation log, if one is to be kept."""
    directory = assignment.oplog_directory
    return LogFile(Path(directory), assignment.attempt, assignment.rank) if directory is not None else None


def metrics_path(assignment: Assignment) -> Path | None:
    """Where rank 0 keeps the loss curve; the other ranks keep none."""
    if assignment.rank != 0:
        return None
    return Path(assignment.checkpoint_directory or assignment.run_directory) / METRICS_FILE


def finish(state: StateService, channel: RankChannel, rank: int, executor: Executor, oplog: OperationLog) -> None:
    """Wait until the last checkpoint is on the volume, then say the last word."""
    if not state.close(LAST_WRITE_SECONDS):
        raise StorageError(f"the last checkpoint was not written within {LAST_WRITE_SECONDS:.0f} s")
    channel.reliable(
        RankMessage(
            rank=rank,
            step=executor.context.step,
            section=executor.context.section,
            metrics=executor.metrics,
            oplog_count=oplog.count,
            oplog_head=oplog.head,
        )
    )
