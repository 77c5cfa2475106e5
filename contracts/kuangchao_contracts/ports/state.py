"""State: weights, optimizer, checkpoints and restart decisions. Never touches links, never changes a plan."""

from abc import abstractmethod
from typing import Annotated

from pydantic import Field

from kuangchao_contracts.audit import AuditClass
from kuangchao_contracts.base import Contract, ShortText
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.checkpoint import CheckpointRef, Sha256, Step
from kuangchao_contracts.faults import FaultDecision, FaultReport
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.ports.base import Port, operation
from kuangchao_contracts.run import Ack, CommitReply, CommitRequest, RestorePointReply, RestorePointRequest


class StateControl(Port):
    """State in the control plane: fault decisions and the commit ledger."""

    layer = Layer.STATE

    @abstractmethod
    @operation(audit=AuditClass.CONTROL, one_shot=True)
    async def assess(self, capability: Capability, request: FaultReport) -> FaultDecision:
        """Execution hands a faulty job over; the answer hands it back."""

    @abstractmethod
    @operation(audit=AuditClass.CONTROL, one_shot=True)
    async def commit_checkpoint(self, capability: Capability, request: CommitRequest) -> CommitReply:
        """Enter a checkpoint in the ledger if its attempt is still the current one. Raises StaleEpochError."""

    @abstractmethod
    @operation(audit=AuditClass.CONTROL)
    async def restore_point(self, capability: Capability, request: RestorePointRequest) -> RestorePointReply:
        """The newest usable committed checkpoint. Raises CheckpointCorruptError when all committed ones are damaged."""


class SubmitGradients(Contract):
    """Gradients of one step are ready in the module's parameters. They are not carried here: state owns them."""

    step_id: Step


class StepResult(Contract):
    """What the update did: global gradient norm before clipping (decimal text) and parameter count.

    Where the loss is scaled (fp16): the scale of the next step, and how many steps of the run were skipped for
    gradients that were no numbers.
    """

    step: Step
    gradient_norm: ShortText
    elements: Annotated[int, Field(ge=0)]
    loss_scale: ShortText | None = None
    skipped: Annotated[int, Field(ge=0)] | None = None

    def audit_text(self) -> str:
        """How much was written, and none of it."""
        return f"norm {self.gradient_norm} elements {self.elements}"


class SaveRequest(Contract):
    """Save the state after this step to a directory (absolute path on the mounted volume)."""

    step: Step
    directory: Annotated[str, Field(max_length=1024)]


class RestoreRequest(Contract):
    """Load a committed checkpoint after checking it against its ledger digest."""

    checkpoint: CheckpointRef
    directory: Annotated[str, Field(max_length=1024)]


class SnapshotRequest(Contract):
    """Read-only view of the weights at the newest snapshot."""

    want_digest: bool = True


class SnapshotView(Contract):
    """Which snapshot it is and the digest of its parameters."""

    step: Step
    sha256: Sha256 | None = None


class StateRank(Port):
    """State inside a rank process: the sole authority over parameters and optimizer."""

    layer = Layer.STATE

    @abstractmethod
    @operation(audit=AuditClass.STEP)
    def submit_gradients(self, capability: Capability, request: SubmitGradients) -> StepResult:
        """Reduce and apply the gradients of a step. Raises StepOrderError for a duplicate, skipped or late step."""

    @abstractmethod
    @operation(audit=AuditClass.STEP)
    def save(self, capability: Capability, request: SaveRequest) -> Ack:
        """Copy state to memory now and write it in the background; returns after the copy."""

    @abstractmethod
    @operation(audit=AuditClass.STEP)
    def restore(self, capability: Capability, request: RestoreRequest) -> Ack:
        """Load a checkpoint. Raises CheckpointCorruptError."""

    @abstractmethod
    @operation(audit=AuditClass.STEP)
    def snapshot(self, capability: Capability, request: SnapshotRequest) -> SnapshotView:
        """Read the newest snapshot of the parameters."""
