"""Execution: the only layer that starts, pauses and stops anything. Carries out plans, never changes them."""

from abc import abstractmethod
from typing import Annotated

from pydantic import Field

from kuangchao_contracts.audit import AuditClass
from kuangchao_contracts.base import Contract, Name, ShortText, Text
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.ports.base import Port, operation
from kuangchao_contracts.run import Ack, Empty, HeartbeatReply, HeartbeatRequest, JoinReply, JoinRequest


class LaunchRequest(Contract):
    """Start the pods (or processes) of an incarnation for an attempt."""

    attempt: Annotated[int, Field(ge=1)]
    incarnation: Annotated[int, Field(ge=0)]
    plan_hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    def audit_text(self) -> str:
        """Which pods, for which attempt, by which plan."""
        return f"attempt {self.attempt} incarnation {self.incarnation} plan {self.plan_hash}"


class StopRequest(Contract):
    """End the pods of an incarnation. `force` skips the grace period on nodes that are gone."""

    incarnation: Annotated[int, Field(ge=0)]
    reason: ShortText
    message: Text = ""
    force: bool = False
    """Skip the grace period of every pod; with `force_pods` of these only."""
    force_pods: Annotated[tuple[Name, ...], Field(max_length=16_384)] = ()
    overdue_pods: Annotated[tuple[Name, ...], Field(max_length=16_384)] = ()
    """Pods on live nodes that had their time: a grace period of 1 s, so that the kubelet still confirms their end."""
    drain: bool = False
    """The attempt stays open and the tokens stay until the pods are gone: their last checkpoint is still to come."""

    def audit_text(self) -> str:
        """Which pods, why, and how many without grace."""
        kept = " drain" if self.drain else ""
        return f"incarnation {self.incarnation} reason {self.reason} forced {len(self.force_pods)}{kept}"


class ContextView(Contract):
    """The ExecutionContext of a rank: where it is in the run."""

    step: Annotated[int, Field(ge=0)]
    epoch: Annotated[int, Field(ge=0)]
    samples: Annotated[int, Field(ge=0)]
    section: Annotated[str, Field(max_length=32)]
    operations: Annotated[tuple[str, ...], Field(max_length=64)] = ()


class ExecutionControl(Port):
    """Execution in the control plane."""

    layer = Layer.EXECUTION

    @abstractmethod
    @operation(audit=AuditClass.CONTROL, one_shot=True)
    async def launch(self, capability: Capability, request: LaunchRequest) -> Ack:
        """Create token Secret, Service and pods. Repeatable: names are fixed, a second call changes nothing."""

    @abstractmethod
    @operation(audit=AuditClass.CONTROL, one_shot=True)
    async def stop(self, capability: Capability, request: StopRequest) -> Ack:
        """Delete pods and tokens of an incarnation; what is already gone is success."""

    @abstractmethod
    @operation(audit=AuditClass.CONTROL, one_shot=True)
    async def reclaim(self, capability: Capability, request: Empty) -> Ack:
        """Free everything that the job holds, also after a crash; repeatable."""

    @abstractmethod
    @operation(audit=AuditClass.CONTROL)
    async def join(self, capability: Capability, request: JoinRequest) -> JoinReply:
        """An agent joins its attempt; answered at once, `ready` when the gang is complete."""

    @abstractmethod
    @operation(audit=AuditClass.STEP)
    async def heartbeat(self, capability: Capability, request: HeartbeatRequest) -> HeartbeatReply:
        """Liveness, progress and exits of a pod's ranks."""


class ExecutionRank(Port):
    """Execution inside a rank process."""

    layer = Layer.EXECUTION

    @abstractmethod
    @operation(audit=AuditClass.STEP)
    def context(self, capability: Capability, request: Empty) -> ContextView:
        """The rank's ExecutionContext."""
