"""Facts that the life cycle is decided from, and the actions that a decision asks for. Values only."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
from kuangchao_contracts.api.trainingjob import NodeShare, Priority, TrainingJobStatus
from kuangchao_contracts.base import Contract
from kuangchao_contracts.faults import FaultDecision, FaultReport
from kuangchao_contracts.plan import DeviceShape, ParallelPlan, PlanOutcome, PlanRequest
from kuangchao_contracts.ports.strategy import ReplanRequest
from kuangchao_contracts.reasons import Reason
from kuangchao_contracts.run import HeartbeatRequest
from kuangchao_operator.layers.execution import limits


class PodFact(Contract):
    """A pod (or a local agent process) as last seen."""

    name: str
    index: int
    incarnation: int
    attempt: int
    node: str | None = None
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"] = "Pending"
    ready: bool = False
    deleting: bool = False
    ends_by: datetime | None = None
    """When a pod that was told to end will be killed; None: it was not told, or has no time left."""
    owned: bool = True
    """False: the pod bears our name but another owner made it."""
    waiting_reason: str = ""
    waiting_message: str = ""
    sandbox_at: datetime | None = None
    """Since when volumes and network are there and images are pulled; None: not yet, or an older kubelet."""
    exit_code: int | None = None
    """Exit code of the training container only; side-cars do not count."""
    exit_reason: str = ""
    """OOMKilled, Evicted, Error ... as Kubernetes says it."""
    termination_message: str = ""
    memory_limit_bytes: int | None = None
    """Limit of the training container; None: it has none."""
    finished_at: datetime | None = None
    """When the training container ended, as the kubelet says it."""
    disrupted: bool = False
    """The pod has a DisruptionTarget condition (eviction, preemption, taint)."""
    node_ready: bool = True
    node_lost_since: datetime | None = None


class AgentFact(Contract):
    """The newest heartbeat of a pod's agent and when it came."""

    heartbeat: HeartbeatRequest
    seen_at: datetime
    first_exit_at: datetime | None = None
    """When a rank of this attempt was first seen to have ended; None: all still run."""


class NodeSlots(Contract):
    """Devices of one node that a pool may give away. `unhealthy` says what is not counted and why."""

    node: str
    devices: Annotated[int, Field(ge=0)]
    device_memory_bytes: Annotated[int, Field(ge=0)] = 0
    ready: bool = True
    unhealthy: tuple[tuple[str, str], ...] = ()


class Claim(Contract):
    """Devices that a job holds in the pool now, by node: reserved, or still used by pods that exist."""

    namespace: str
    job: str
    priority: Priority
    shares: tuple[NodeShare, ...]


class Waiting(Contract):
    """A job of the pool that wants devices."""

    namespace: str
    job: str
    uid: str
    priority: Priority
    created: datetime
    devices: int
    per_pod: int
    together: int = 1
    """Pods that the plan needs on one node, in runs; of jobs behind or ahead it is not known, and taken as 1."""
    avoid_nodes: tuple[str, ...] = ()


class PoolFacts(Contract):
    """The pool with everything that admission depends on."""

    name: str
    spec: ResourcePoolSpec
    nodes: tuple[NodeSlots, ...]
    claims: tuple[Claim, ...] = ()
    foreign: tuple[Claim, ...] = ()
    """What jobs of other pools hold on nodes of this one, in this pool's devices."""
    waiting: tuple[Waiting, ...] = ()
    shapes: tuple[DeviceShape, ...] = ()
    deleting: bool = False


class JobSnapshot(Contract):
    """Everything known of one job at one moment. `pool` None: no such pool."""

    now: datetime
    job: TrainingJob
    pool: PoolFacts | None = None
    outcome: PlanOutcome | None = None
    """Answer of strategy to the question of `outcome_digest`, if it was asked in this process."""
    outcome_digest: str | None = None
    plan: ParallelPlan | None = None
    """The plan of the admitted job, from its ParallelPlan object."""
    failed_plan: ParallelPlan | None = None
    """The newest plan in `status.outOfMemory`, from its object; None: there is none, or its object is gone."""
    pods: tuple[PodFact, ...] = ()
    agents: tuple[AgentFact, ...] = ()
    verdict: FaultDecision | None = None
    """Answer of state to the fault of `verdict_attempt`."""
    verdict_attempt: int = 0
    tokens_minted_at: datetime | None = None
    tokens_late_at: datetime | None = None
    """When tokens were last minted anew that came too late for those before them, or those were taken back."""
    launched: tuple[int, int] | None = None
    """(attempt, incarnation) of the newest launch done in this process."""
    reclaimed: bool = False
    """Whether Reclaim was done in this process since the newest launch."""
    stop_done: "StopDone | None" = None
    """The newest Stop that was done in this process: an equal one is not asked for again for a moment."""
    storage_problem: str | None = None
    """Why the checkpoint claim cannot be used (missing, path in use by another job); None: fine or unused."""
    storage_reason: Reason | None = None
    child_error: str | None = None
    """Why the API server refused a child, as it said it; None: fine."""
    child_error_final: bool = False
    revoked: bool = False
    """Whether somebody has taken back everything that the job's workers hold."""
    release_namespace: str | None = None
    operator_started_at: datetime
    silence_seconds: float = limits.AGENT_LOST
    """How long an agent whose pod runs may say nothing."""
    deaf_until: datetime | None = None
    """End of the newest time in which this process stood still; None: it never did."""


class Plan(Contract):
    """Ask strategy."""

    kind: Literal["plan"] = "plan"
    request: PlanRequest


class Replan(Contract):
    """Ask strategy for a plan in place of one that was seen not to fit."""

    kind: Literal["replan"] = "replan"
    request: ReplanRequest


class RecordPlan(Contract):
    """Create the ParallelPlan object."""

    kind: Literal["recordPlan"] = "recordPlan"
    plan: ParallelPlan


class Launch(Contract):
    """Secret, Service and pods of (attempt, incarnation), through the gate."""

    kind: Literal["launch"] = "launch"
    attempt: int
    incarnation: int


class RenewTokens(Contract):
    """Mint the tokens of the running attempt anew and deliver them."""

    kind: Literal["renewTokens"] = "renewTokens"
    attempt: int
    incarnation: int


class Stop(Contract):
    """Delete pods and, unless they are to `drain`, tokens of all incarnations up to this one, through the gate."""

    kind: Literal["stop"] = "stop"
    incarnation: int
    reason: Reason
    message: str = ""
    force: tuple[str, ...] = ()
    """Names of pods to delete without grace: their node is gone."""
    overdue: tuple[str, ...] = ()
    """Names of pods that outran fault.terminationSeconds on a live node, or whose job is revoked: delete with a grace
    of 1 s, so that the kubelet still confirms their end before the devices are used again."""
    drain: bool = False
    """Their last checkpoint is still to come, so the attempt stays open and the tokens stay until they are gone."""


class Reclaim(Contract):
    """Free everything the job holds, through the gate; done once when it ends."""

    kind: Literal["reclaim"] = "reclaim"


class StopDone(Contract):
    """A Stop and when it was done."""

    stop: Stop
    at: datetime


class Assess(Contract):
    """Hand the fault to state."""

    kind: Literal["assess"] = "assess"
    report: FaultReport


class Emit(Contract):
    """A Kubernetes Event on a condition's transition."""

    kind: Literal["emit"] = "emit"
    type: Literal["Normal", "Warning"] = "Normal"
    reason: Reason
    message: str


class DeleteJob(Contract):
    """The time to live after the end has passed."""

    kind: Literal["deleteJob"] = "deleteJob"


Action = Plan | Replan | RecordPlan | Launch | RenewTokens | Stop | Reclaim | Assess | Emit | DeleteJob


class Decision(Contract):
    """The wanted status and, once it is stored, the actions in order.

    `status` None: nothing to store. `wake_after_seconds`: look again then even if nothing happens; None: on change.
    `released`: the job holds nothing any more, so the shell may let a deleted job go.

    Actions are repeated until the facts show their effect, so the shell must keep those facts that only it knows
    (`launched`, `reclaimed`, `stop_done`, ...). Emit alone goes with the status it comes with and is never repeated.
    """

    status: TrainingJobStatus | None
    actions: tuple[Action, ...] = ()
    wake_after_seconds: Annotated[float, Field(gt=0)] | None = None
    released: bool = False


JobSnapshot.model_rebuild()
