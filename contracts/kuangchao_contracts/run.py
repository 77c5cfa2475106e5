"""What agents and the control plane say to each other while a job runs."""

import hashlib
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from kuangchao_contracts.base import Contract, Name, ShortText, Text
from kuangchao_contracts.checkpoint import CheckpointManifest, CheckpointRef, Step
from kuangchao_contracts.plan import ParallelPlan, TrainingSpec

Attempt = Annotated[int, Field(ge=1)]
PodIndex = Annotated[int, Field(ge=0, le=16_383)]
Rank = Annotated[int, Field(ge=0, le=1_048_575)]


class LaunchSpec(Contract):
    """All that a pod needs to know to run its share; the same for every pod of the job."""

    namespace: Name
    job: Name
    job_uid: ShortText
    task: ShortText | None = None
    task_args: dict[str, str] = {}
    command: tuple[str, ...] | None = None
    training: TrainingSpec
    plan: ParallelPlan
    checkpoint_every_steps: int | None = None
    checkpoint_every_seconds: int | None = None
    checkpoint_keep: int = 2
    checkpoint_path: ShortText | None = None
    """Directory below the checkpoint mount; None: no checkpoints."""


class JoinRequest(Contract):
    """An agent presents itself for an attempt. `host` is where peers reach this pod."""

    attempt: Attempt
    incarnation: Annotated[int, Field(ge=0)]
    pod_index: PodIndex
    pod: Name
    host: ShortText
    store_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Port of the store that the agent of pod 0 has opened for this attempt; 0 from the others."""
    store_prefix: ShortText = ""
    """Random prefix that pod 0 drew for this attempt; "" from the others."""

    def audit_text(self) -> str:
        """Which pod joined which attempt."""
        return f"attempt {self.attempt} incarnation {self.incarnation} pod {self.pod_index}"


class JoinReply(Contract):
    """`ready` false: the gang is not complete yet, ask again. Otherwise everything needed to start ranks."""

    ready: bool
    waiting_for: ShortText = ""
    attempt: Attempt
    launch: LaunchSpec | None = None
    master_host: ShortText = ""
    master_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    store_prefix: ShortText = ""
    """Random for each attempt: keys of an older attempt are never read."""
    restore: CheckpointRef | None = None

    def audit_text(self) -> str:
        """Whether the gang is complete and where it starts from."""
        if not self.ready:
            return "waits"
        return f"ready, from step {self.restore.step}" if self.restore else "ready, from the beginning"


class RankState(StrEnum):
    """Life of one rank process."""

    STARTING = "Starting"
    RUNNING = "Running"
    EXITED = "Exited"


class RankReport(Contract):
    """One rank as its agent sees it. `step` is the last completed step."""

    rank: Rank
    state: RankState
    step: Step = 0
    section: Annotated[str, Field(max_length=32)] = "init"
    exit_code: int | None = None
    error: Text | None = None
    error_kind: Annotated[str, Field(max_length=64)] | None = None


class HeartbeatRequest(Contract):
    """Sent by each agent once a second. Metrics are decimal texts and come from rank 0 only."""

    join: JoinRequest
    """What this agent joined with, so that a restarted operator knows the gang again from heartbeats alone."""
    ranks: Annotated[tuple[RankReport, ...], Field(max_length=1024)]
    metrics: Annotated[dict[str, Annotated[str, Field(max_length=64)]], Field(max_length=32)] = {}
    oplog_head: Annotated[str, Field(max_length=64)] = ""
    oplog_count: Annotated[int, Field(ge=0)] = 0


class Directive(StrEnum):
    """What the agent must do next."""

    CONTINUE = "Continue"
    REJOIN = "Rejoin"
    STOP = "Stop"


class HeartbeatReply(Contract):
    """`attempt` is the current one: an agent with an older one ends its ranks and joins again with a new token."""

    attempt: Annotated[int, Field(ge=0)]
    directive: Directive


class CommitRequest(Contract):
    """Ask that a checkpoint becomes part of the ledger."""

    path: ShortText
    manifest: CheckpointManifest
    oplog_heads: Annotated[
        dict[
            Annotated[str, Field(pattern="^[0-9]{1,7}$")], Annotated[str, Field(pattern="^[0-9]{1,20}:[0-9a-f]{0,64}$")]
        ],
        Field(max_length=16_384),
    ] = {}
    """Rank -> "<count>:<head>" of its hash-chained operation log at this step."""

    def audit_text(self) -> str:
        """Step, manifest and the operation logs' heads: so the store holds what each rank had done by then."""
        heads = self.oplog_heads
        logs = " ".join(f"rank{rank}={head}" for rank, head in sorted(heads.items()))
        if len(logs) > 640:
            logs = f"oplogs of {len(heads)} ranks sha256={hashlib.sha256(logs.encode()).hexdigest()}"
        return (
            f"step {self.manifest.step} attempt {self.manifest.attempt} manifest {self.manifest.content_hash()} {logs}"
        )


class CommitReply(Contract):
    """`prune` are paths that fell out of the ledger and may be deleted now."""

    committed: CheckpointRef
    prune: Annotated[tuple[ShortText, ...], Field(max_length=64)] = ()


class RestorePointRequest(Contract):
    """Ask for the newest committed checkpoint that is not in `damaged` (digests)."""

    attempt: Attempt
    damaged: Annotated[tuple[str, ...], Field(max_length=16)] = ()


class RestorePointReply(Contract):
    """None: start from step 0 (only when nothing was ever committed)."""

    checkpoint: CheckpointRef | None = None


class FeedReply(Contract):
    """What a worker must know to judge tokens by itself."""

    attempt: Annotated[int, Field(ge=0)]
    policy_generation: Annotated[int, Field(ge=0)]
    revoked: Annotated[tuple[str, ...], Field(max_length=4096)] = ()
    denied_kids: Annotated[tuple[str, ...], Field(max_length=64)] = ()


class ExchangeRequest(Contract):
    """Exchange a lease for a one-shot for one operation on one resource."""

    op: Annotated[str, Field(max_length=64)]
    resource: Annotated[str, Field(max_length=512)]


class ExchangeReply(Contract):
    """The one-shot token. Never logged: its repr hides the value."""

    token: Annotated[str, Field(max_length=8192, repr=False)]


class Empty(Contract):
    """No content."""


class Ack(Contract):
    """Done."""

    detail: Text = ""
