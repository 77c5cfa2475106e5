"""TrainingJob: what a user applies. Defaults live here, so the operator never writes a user's spec."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from kuangchao_contracts.api.meta import Column, Conditions, CustomObject, list_map, rules
from kuangchao_contracts.api.podtemplate import OpenObject, PodTemplate
from kuangchao_contracts.base import Contract, Name, ShortText, Text
from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.descriptor import DeviceKind
from kuangchao_contracts.plan import ModelDescriptor, Parallelism, TrainingSpec
from kuangchao_contracts.plugins import PluginChoice
from kuangchao_contracts.reasons import Phase

Seconds = Annotated[int, Field(ge=1, le=31_536_000)]


def _empty(value: object) -> bool:
    return not value


class Priority(StrEnum):
    """Priority class; debug jobs may use at most the pool's debug share."""

    PRODUCTION = "production"
    DEBUG = "debug"


class Devices(Contract):
    """The gang: `count` devices in pods of `perPod`; min and max are for elastic jobs."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "self.count % self.perPod == 0",
                "='devices.count %d must be a multiple of devices.perPod %d'.format([self.count, self.perPod])",
            ),
            ("!has(self.min) || self.min <= self.count", "devices.min must not exceed devices.count"),
            ("!has(self.max) || self.max >= self.count", "devices.max must not be below devices.count"),
        )
    )

    count: Annotated[int, Field(ge=1, le=16_384)]
    per_pod: Annotated[int, Field(ge=1, le=1_024)] = 1
    type: DeviceKind | None = None
    min: Annotated[int, Field(ge=1, le=16_384)] | None = None
    max: Annotated[int, Field(ge=1, le=16_384)] | None = None


class CheckpointStorage(Contract):
    """Where checkpoints go: a PersistentVolumeClaim of the job's namespace and a directory on it.

    `path` defaults to <job>-<uid hash>, which no other job can have.
    """

    claim_name: Annotated[str, Field(max_length=253, min_length=1)]
    path: (
        Annotated[str, Field(max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$")]
        | None
    ) = None


class CheckpointPolicy(Contract):
    """When to save and how many to keep (2 at least: the newest may turn out to be damaged)."""

    every_steps: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    every_minutes: Annotated[int, Field(ge=1, le=10_080)] | None = None
    keep: Annotated[int, Field(ge=2, le=16)] = 2
    storage: CheckpointStorage | None = None


class HangAction(StrEnum):
    """What to do when no rank makes progress."""

    OBSERVE = "Observe"
    RESTART = "Restart"
    FAIL = "Fail"


class RestartLimitAction(StrEnum):
    """What to do when the restart budget is used up."""

    SUSPEND = "Suspend"
    FAIL = "Fail"


class FaultPolicy(Contract):
    """Budgets and deadlines for faults."""

    max_restarts: Annotated[int, Field(ge=0, le=1_000)] = 3
    on_restart_limit: RestartLimitAction = RestartLimitAction.SUSPEND
    on_hang: HangAction = HangAction.RESTART
    hang_seconds: Seconds = 600
    first_step_seconds: Seconds = 1_800
    node_lost_seconds: Annotated[int, Field(ge=0, le=3_600)] = 10
    termination_seconds: Annotated[int, Field(ge=1, le=3_600)] = 60


class SuccessPolicy(StrEnum):
    """Which ranks must exit with 0."""

    ALL_RANKS = "AllRanks"
    RANK0 = "Rank0"


class Channel(Contract):
    """A communication channel's share of a node's bandwidth. Checked and kept; nothing enforces it yet."""

    name: Annotated[str, Field(max_length=63)]
    quota_percent: Annotated[int, Field(ge=1, le=100)]


class Access(Contract):
    """Who may do what with this job; users by their API-server name."""

    owner: ShortText | None = None
    collaborators: Annotated[tuple[ShortText, ...], Field(max_length=64)] = ()
    viewers: Annotated[tuple[ShortText, ...], Field(max_length=64)] = ()


_LAYOUT = rules(
    (
        "!has(self.stageLayers) || (has(self.pipeline)"
        " && self.stageLayers.size() == self.pipeline * self.?virtualStages.orValue(1))",
        "parallelism.stageLayers needs parallelism.pipeline, and one number for each of its pipeline x virtualStages"
        " stages",
    ),
    (
        "!has(self.schedule) || self.schedule != 'zb-v' || self.?virtualStages.orValue(2) == 2",
        "parallelism.schedule zb-v has 2 virtualStages",
    ),
    (
        "!has(self.schedule) || self.schedule != 'interleaved' || self.?virtualStages.orValue(2) > 1",
        "parallelism.schedule interleaved needs virtualStages of 2 or more",
    ),
    (
        "!has(self.schedule) || !(self.schedule in ['1f1b', 'zb-h1', 'zb-h2']) || self.?virtualStages.orValue(1) == 1",
        "parallelism.schedule 1f1b, zb-h1 or zb-h2 takes no virtualStages; gpipe, interleaved and zb-v do",
    ),
)
"""Rules over fields that 0.1.0 did not have: a guard comes first, so that stored jobs stay valid."""

_PINNED = [f"self.parallelism.?{axis}.orValue(1)" for axis in ("tensor", "pipeline", "context", "data")]
_EACH_FITS = " && ".join(f"{size} <= self.devices.count" for size in _PINNED)
"""Checked first, so that the product below cannot overflow."""
_PRODUCT = " * ".join(_PINNED)


class TrainingJobSpec(Contract):
    """The user's wish. Either `task` (our executor) or `command` (what follows `torchrun`)."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("has(self.task) != has(self.command)", "exactly one of spec.task and spec.command must be set"),
            ("self.pool == oldSelf.pool", "spec.pool cannot change; delete the job and apply it to the other pool"),
            (
                "has(self.managedBy) == has(oldSelf.managedBy)"
                " && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
                "spec.managedBy cannot change",
            ),
            ("self.retryGeneration >= oldSelf.retryGeneration", "spec.retryGeneration can only rise"),
            (
                "has(self.task) == has(oldSelf.task) && (!has(self.task) || self.task == oldSelf.task)",
                "spec.task cannot change",
            ),
            (
                "self.suspend || oldSelf.suspend || (self.devices == oldSelf.devices"
                " && self.training == oldSelf.training && self.parallelism == oldSelf.parallelism)",
                "devices, training and parallelism may change only while spec.suspend is true",
            ),
            (
                "oldSelf.suspend || (has(self.checkpoint.storage) == has(oldSelf.checkpoint.storage)"
                " && (!has(self.checkpoint.storage) || self.checkpoint.storage == oldSelf.checkpoint.storage))",
                "spec.checkpoint.storage cannot change while the job runs, whose restore points lie there; set"
                " spec.suspend first",
            ),
            (
                "!has(self.checkpoint.everySteps) && !has(self.checkpoint.everyMinutes)"
                " || has(self.checkpoint.storage)",
                "spec.checkpoint.storage is needed when everySteps or everyMinutes is set",
            ),
            (
                f"{_EACH_FITS} && self.devices.count % ({_PRODUCT}) == 0",
                "='parallelism tensor %d x pipeline %d x context %d x data %d must divide devices.count %d'"
                f".format([{', '.join(_PINNED)}, self.devices.count])",
            ),
            (
                f"self.parallelism.mode != 'Manual' || ({_EACH_FITS} && self.devices.count == {_PRODUCT})",
                "='parallelism tensor %d x pipeline %d x context %d x data %d (1 where not given) must equal"
                f" devices.count %d in mode Manual'.format([{', '.join(_PINNED)}, self.devices.count])",
            ),
            (
                "!has(self.parallelism.taskRules) || self.parallelism.taskRules.size() == 0 || has(self.task)",
                "spec.parallelism.taskRules needs spec.task: a command lays out its own processes",
            ),
            (
                "!has(self.channels) || self.channels.map(c, c.quotaPercent).sum() <= 100",
                "the quotaPercent of all channels must not exceed 100 together",
            ),
            (
                "!has(self.plugins) || self.plugins.size() == 0 || has(self.task)",
                "spec.plugins needs spec.task: between the parts of a command nothing can be put",
            ),
            (
                "self.suspend || oldSelf.suspend || (has(self.plugins) == has(oldSelf.plugins)"
                " && (!has(self.plugins) || self.plugins == oldSelf.plugins))",
                "spec.plugins may change only while spec.suspend is true",
            ),
        )
    )

    pool: Annotated[str, Field(max_length=63, min_length=1)]
    priority: Priority = Priority.PRODUCTION
    task: Annotated[str, Field(max_length=253, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    task_args: Annotated[dict[str, Annotated[str, Field(max_length=1024)]], Field(max_length=64)] = {}
    command: (
        Annotated[tuple[Annotated[str, Field(max_length=4096)], ...], Field(min_length=1, max_length=128)] | None
    ) = None
    plugins: Annotated[tuple[PluginChoice, ...], Field(max_length=1, json_schema_extra=list_map("name"))] = ()
    """What is put between algorithm and state; there is room for one."""
    model: ModelDescriptor | None = None
    training: TrainingSpec = TrainingSpec()
    devices: Devices
    parallelism: Annotated[Parallelism, Field(json_schema_extra=_LAYOUT)] = Parallelism()
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    fault: FaultPolicy = FaultPolicy()
    channels: Annotated[tuple[Channel, ...], Field(max_length=8, json_schema_extra=list_map("name"))] = ()
    access: Access = Access()
    suspend: bool = False
    retry_generation: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    managed_by: Annotated[str, Field(max_length=253)] | None = None
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    active_deadline_seconds: Seconds | None = None
    start_deadline_seconds: Seconds = 600
    success_policy: SuccessPolicy = SuccessPolicy.ALL_RANKS
    template: PodTemplate = PodTemplate()
    pod_overrides: OpenObject = {}


class NodeShare(Contract):
    """Devices reserved on one node and the pods (index ranges) that use them."""

    node: Name
    devices: Annotated[int, Field(ge=1)]
    pods: ShortText


class Progress(Contract):
    """How far training is. `metrics` are decimal texts: status holds no floats."""

    step: Annotated[int, Field(ge=0)] = 0
    total_steps: Annotated[int, Field(ge=0)] = 0
    percent: Annotated[int, Field(ge=0, le=100)] = 0
    eta_seconds: Annotated[int, Field(ge=0)] | None = None
    metrics: Annotated[dict[str, Annotated[str, Field(max_length=64)]], Field(max_length=32)] = {}
    updated_at: datetime | None = None


class Failure(Contract):
    """A fault as first seen."""

    reason: ShortText
    message: Text = ""
    pod: ShortText | None = None
    node: ShortText | None = None
    rank: Annotated[int, Field(ge=0)] | None = None
    exit_code: int | None = None
    attempt: Annotated[int, Field(ge=0)] = 0
    step: Annotated[int, Field(ge=0)] | None = None
    time: datetime
    section: Annotated[str, Field(max_length=32)] | None = None
    """Part of a step in which a rank ran out of memory."""
    peak_memory_bytes: Annotated[int, Field(ge=0)] | None = None
    memory_limit_bytes: Annotated[int, Field(ge=0)] | None = None


class MemoryFailure(Contract):
    """A plan that did not fit: what was estimated for its fullest device, and what a rank was seen to hold."""

    plan: ShortText
    """The plan in a few words."""
    plan_hash: Annotated[str, Field(max_length=64)]
    wish: Annotated[str, Field(max_length=64)]
    """Digest of what the job wanted then; of another wish this says nothing."""
    measured_bytes: Annotated[int, Field(ge=0)]
    estimated_bytes: Annotated[int, Field(ge=0)] | None = None
    attempt: Annotated[int, Field(ge=0)]
    step: Annotated[int, Field(ge=0)] = 0


MAX_MEMORY_FAILURES = 16
"""Plans of one wish that may run out of memory; each needs less than the one before."""


class TrainingJobStatus(Contract):
    """What the operator knows. `attempt` is the fencing number, `incarnation` names pods."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    phase: Phase = Phase.PENDING
    conditions: Conditions = ()
    plan_hash: Annotated[str, Field(max_length=64)] | None = None
    plan_summary: Annotated[str, Field(max_length=64)] | None = None
    plan_name: Annotated[str, Field(max_length=253)] | None = None
    attempt: Annotated[int, Field(ge=0)] = 0
    incarnation: Annotated[int, Field(ge=0)] = 0
    restarts: Annotated[int, Field(ge=0)] = 0
    infrastructure_restarts: Annotated[int, Field(ge=0)] = 0
    restarts_without_progress: Annotated[int, Field(ge=0)] = 0
    retry_generation: Annotated[int, Field(ge=0)] = 0
    allocation: Annotated[tuple[NodeShare, ...], Field(max_length=4096)] = ()
    avoid_nodes: Annotated[tuple[ShortText, ...], Field(max_length=64)] = ()
    ready_pods: Annotated[int, Field(ge=0)] = 0
    total_pods: Annotated[int, Field(ge=0)] = 0
    ready: Annotated[str, Field(max_length=32)] = ""
    restart_budget: Annotated[str, Field(max_length=32)] = ""
    progress: Progress | None = None
    progress_text: Annotated[str, Field(max_length=64)] = ""
    checkpoints: Annotated[tuple[CheckpointRef, ...], Field(max_length=16)] = ()
    first_failure: Failure | None = None
    last_failure: Failure | None = None
    out_of_memory: Annotated[tuple[MemoryFailure, ...], Field(max_length=MAX_MEMORY_FAILURES, exclude_if=_empty)] = ()
    """Plans that did not fit, oldest first."""
    queued_time: datetime | None = None
    admitted_time: datetime | None = None
    start_time: datetime | None = None
    attempt_time: datetime | None = None
    completion_time: datetime | None = None


class TrainingJob(CustomObject):
    """kuangchao.io/v1alpha1 TrainingJob."""

    plural: ClassVar[str] = "trainingjobs"
    short_names: ClassVar[tuple[str, ...]] = ("tjob",)
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="State", type="string", json_path=".status.phase"),
        Column(name="Plan", type="string", json_path=".status.planSummary"),
        Column(name="Ready", type="string", json_path=".status.ready"),
        Column(name="Restarts", type="string", json_path=".status.restartBudget"),
        Column(name="Progress", type="string", json_path=".status.progressText"),
        Column(name="Age", type="date", json_path=".metadata.creationTimestamp"),
        Column(name="Pool", type="string", json_path=".spec.pool", priority=1),
        Column(name="Reason", type="string", json_path='.status.conditions[?(@.type=="Ready")].reason', priority=1),
        Column(name="Message", type="string", json_path='.status.conditions[?(@.type=="Ready")].message', priority=1),
    )
    rules: ClassVar[tuple[dict[str, Any], ...]] = (
        {
            "rule": "size(self.metadata.name) <= 45 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "messageExpression": "'metadata.name \"' + self.metadata.name + '\" must be a DNS label of at most 45"
            " characters that starts with a letter: names of pods are made from it'",
        },
    )

    kind: Literal["TrainingJob"] = "TrainingJob"
    spec: TrainingJobSpec
    status: TrainingJobStatus | None = None
