"""What agents and the control plane say to each other while a job runs."""

import hashlib
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from kuangchao_contracts.base import Contract, Name, ShortText, Text
from kuangchao_contracts.checkpoint import CheckpointManifest, CheckpointRef, OplogHeads, Step
from kuangchao_contracts.keys import MAX_DENIED, Jwks
from kuangchao_contracts.plan import ParallelPlan, TrainingSpec
from kuangchao_contracts.plugins import PluginChoice

Attempt = Annotated[int, Field(ge=1)]
PodIndex = Annotated[int, Field(ge=0, le=16_383)]
Rank = Annotated[int, Field(ge=0, le=1_048_575)]
MemoryBytes = Annotated[int, Field(ge=0, le=2**53)]
DRAINED_EXIT: Final = 143
"""128 + SIGTERM, of a rank and of its pod: ended early because it was told to, which is no fault of the program."""
STOPPED: Final = "stopped"
"""Section of a rank whose process is stopped (SIGSTOP): it does nothing at all, and others wait for it."""
OOM_KINDS: Final = frozenset({"OutOfMemory", "OutOfMemoryError", "MemoryError"})
"""Classes of errors by which a rank says that there was no memory left."""
MAX_HEADS_TEXT = 640
"""Characters of an audit record that the heads of operation logs may take."""


class LaunchSpec(Contract):
    """All that a pod needs to know to run its share; the same for every pod of the job."""

    namespace: Name
    job: Name
    job_uid: ShortText
    task: ShortText | None = None
    task_args: dict[str, str] = {}
    plugins: tuple[PluginChoice, ...] = ()
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
    pod_uid: Annotated[str, Field(max_length=64)] = ""
    """UID of the pod as it knows it itself; "" where pods have none (local runs)."""

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
    total_steps: Annotated[int, Field(ge=1)] | None = None
    """Steps of the whole run, where the program itself says so (`command` jobs); None: not known."""
    section: Annotated[str, Field(max_length=32)] = "init"
    exit_code: int | None = None
    error: Text | None = None
    error_kind: Annotated[str, Field(max_length=64)] | None = None
    peak_memory_bytes: MemoryBytes | None = None
    """Of a rank that ran out of memory: what it held at most, with what was refused to it last. None: not known."""
    memory_limit_bytes: MemoryBytes | None = None
    """Of such a rank: what it may hold at most. None: not known, or no limit."""


class RankNote(Contract):
    """What a rank's gate has to tell the store: calls that it refused or, `allowed`, let pass in the grace period."""

    rank: Rank
    attempt: Attempt
    op: Annotated[str, Field(max_length=64)]
    resource: Annotated[str, Field(max_length=512)]
    subject: ShortText
    reason: Annotated[str, Field(pattern="^[A-Za-z]{1,64}$")]
    allowed: bool = False
    count: Annotated[int, Field(ge=1, le=2**53)]
    first: datetime
    """When the first of these calls was made, by the clock of the rank's machine."""
    jti: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{0,32}$")] = ""


class RankNotes(Contract):
    """Notes of an agent's ranks, sent until they are stored. `seq` counts a pod's batches, so none counts twice."""

    seq: Annotated[int, Field(ge=1)]
    notes: Annotated[tuple[RankNote, ...], Field(min_length=1, max_length=64, fail_fast=True)]


class HeartbeatRequest(Contract):
    """Sent by each agent once a second. Metrics are decimal texts and come from rank 0 only."""

    join: JoinRequest
    """What this agent joined with, so that a restarted operator knows the gang again from heartbeats alone."""
    ranks: Annotated[tuple[RankReport, ...], Field(max_length=1024, fail_fast=True)]
    metrics: Annotated[dict[str, Annotated[str, Field(max_length=64)]], Field(max_length=32)] = {}
    oplog_head: Annotated[str, Field(max_length=64)] = ""
    oplog_count: Annotated[int, Field(ge=0)] = 0
    notes: RankNotes | None = None
    lease_overdue_seconds: Annotated[int, Field(ge=1)] | None = None
    """How long ranks of this pod have acted in this attempt on leases that had expired; None: never."""


class Directive(StrEnum):
    """What the agent must do next."""

    CONTINUE = "Continue"
    REJOIN = "Rejoin"
    STOP = "Stop"


class HeartbeatReply(Contract):
    """`attempt` is the current one: an agent with an older one ends its ranks and joins again with a new token."""

    attempt: Annotated[int, Field(ge=0)]
    directive: Directive
    notes_stored: int | None = None
    """`seq` of the newest batch of notes that is stored; only in answers to requests that carry one."""


class CommitRequest(Contract):
    """Ask that a checkpoint becomes part of the ledger."""

    path: ShortText
    manifest: CheckpointManifest
    oplog_heads: OplogHeads = {}
    """As `manifest.oplogs`, by agents of an older release."""

    def audit_text(self) -> str:
        """Step, manifest and the operation logs' heads; those of many ranks are found by the manifest's digest."""
        manifest = self.manifest
        heads = manifest.oplogs or self.oplog_heads
        logs = " ".join(f"rank{rank}={head}" for rank, head in sorted(heads.items(), key=lambda item: int(item[0])))
        if len(logs) > MAX_HEADS_TEXT:
            logs = f"oplogs of {len(heads)} ranks sha256={hashlib.sha256(logs.encode()).hexdigest()}"
        return f"step {manifest.step} attempt {manifest.attempt} manifest {manifest.content_hash()} {logs}".rstrip()


class CommitReply(Contract):
    """`prune` are paths that fell out of the ledger and may be deleted now."""

    committed: CheckpointRef
    prune: Annotated[tuple[ShortText, ...], Field(max_length=64)] = ()


class RestorePointRequest(Contract):
    """Ask for the newest committed checkpoint that is not in `damaged` (digests)."""

    attempt: Attempt
    damaged: Annotated[tuple[str, ...], Field(max_length=16, fail_fast=True)] = ()


class RestorePointReply(Contract):
    """None: start from step 0 (only when nothing was ever committed)."""

    checkpoint: CheckpointRef | None = None


class FeedReply(Contract):
    """What a worker must know to judge tokens by itself."""

    attempt: Annotated[int, Field(ge=0)]
    policy_generation: Annotated[int, Field(ge=0)]
    revoked: Annotated[tuple[str, ...], Field(max_length=4096)] = ()
    denied_kids: Annotated[tuple[str, ...], Field(max_length=MAX_DENIED)] = ()
    jwks: Jwks | None = None
    """The issuer's keys, while some are denied: their successor signs at once, before any mounted copy shows it."""


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
