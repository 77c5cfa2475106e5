"""Plug-ins: what somebody has put between algorithm and state. One port for all of them; each has its own audience.

Gradients and error memory are not carried here: state hands them over as values, and a plug-in takes them only in a
step that was opened, or for a checkpoint that was announced, by a call through the gate. A plug-in never holds a
process group, a link, a path or the optimizer.
"""

from abc import abstractmethod
from typing import Annotated

from pydantic import Field

from kuangchao_contracts.audit import AuditClass
from kuangchao_contracts.base import Contract
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.checkpoint import Step
from kuangchao_contracts.layers import Layer, plugin_audience
from kuangchao_contracts.ports.base import Port, operation
from kuangchao_contracts.run import Ack


class OpenStep(Contract):
    """Gradients of this step are about to be reduced."""

    step_id: Step


class StepTraffic(Contract):
    """What this rank has handed over so far: bytes of its gradients, and of what they were made into."""

    gradient_bytes: Annotated[int, Field(ge=0)]
    coded_bytes: Annotated[int, Field(ge=0)]


class MemoryAt(Contract):
    """The plug-in's memory as it is after this step, for a checkpoint or from one."""

    step: Step


class PluginRank(Port):
    """A plug-in inside a rank process. `plugin` is its name, "" for none."""

    layer = Layer.PLUGIN
    plugin: str = ""

    @property
    def audience(self) -> str:
        """See Port."""
        return plugin_audience(self.plugin) if self.plugin else self.layer.audience

    @abstractmethod
    @operation(audit=AuditClass.STEP)
    def open_step(self, capability: Capability, request: OpenStep) -> StepTraffic:
        """From now on gradients of this step are taken, each once. Raises StepOrderError for any but the next step."""

    @abstractmethod
    @operation(audit=AuditClass.STEP)
    def save(self, capability: Capability, request: MemoryAt) -> Ack:
        """State is about to copy the memory. Raises StepOrderError unless it is that after this step."""

    @abstractmethod
    @operation(audit=AuditClass.STEP)
    def restore(self, capability: Capability, request: MemoryAt) -> Ack:
        """State is about to replace the memory by that of a checkpoint; the next step is the one after."""
