"""A plug-in of a rank as others meet it: the gate by its port, state by values. Makes every codec keep the order.

Gradients are taken in a step that was opened through the gate, each parameter once: a second time would apply an error
memory twice. Memory is handed out only after it was announced. Never decides how payloads travel.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence

import torch

from kuangchao_contracts.capability import Capability
from kuangchao_contracts.errors import InvalidInputError, StepOrderError
from kuangchao_contracts.plugins import PluginChoice
from kuangchao_contracts.ports.plugin import MemoryAt, OpenStep, PluginRank, StepTraffic
from kuangchao_contracts.run import Ack
from kuangchao_worker.plugins import Codec

log = logging.getLogger(__name__)
Form = tuple[int, torch.dtype]
"""Length and type of a flat tensor."""


class PluginService(PluginRank):
    """One plug-in of one rank."""

    def __init__(self, choice: PluginChoice, codec: Codec) -> None:
        self.plugin, self.summable = choice.name, codec.summable
        self._choice, self._codec = choice, codec
        self._step = 0
        self._taken: set[str] | None = None
        self._announced = False
        self._bytes = [0, 0]
        self._forms: dict[Form, Form] = {}
        """Of payloads, by the form of their gradients: others cut what they get by their own."""

    # ---- through the gate

    def open_step(self, capability: Capability, request: OpenStep) -> StepTraffic:  # noqa: ARG002
        """See PluginRank."""
        if request.step_id != self._step + 1:
            raise StepOrderError(f"step_id={request.step_id}: the plug-in's next step is {self._step + 1}")
        self._step, self._taken = request.step_id, set()
        return StepTraffic(gradient_bytes=self._bytes[0], coded_bytes=self._bytes[1])

    def save(self, capability: Capability, request: MemoryAt) -> Ack:  # noqa: ARG002
        """See PluginRank."""
        if request.step != self._step:
            raise StepOrderError(f"step={request.step}: the plug-in's memory is that after step {self._step}")
        self._announced, self._taken = True, None
        return Ack()

    def restore(self, capability: Capability, request: MemoryAt) -> Ack:  # noqa: ARG002
        """See PluginRank."""
        self._step, self._taken, self._announced = request.step, None, True
        return Ack()

    # ---- values, to and from state

    def digest(self, elements: Mapping[str, int]) -> bytes:
        """What must be equal on all ranks: 32 bytes over name, version, options and parameters."""
        said = (self._codec.version, self._choice.canonical(), sorted(elements.items()))
        return hashlib.sha256(repr(said).encode()).digest()

    def expect(self, elements: Mapping[str, int]) -> None:
        """The parameters to come and their lengths."""
        self._codec.expect(elements)

    def encode(self, names: Sequence[str], gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Payloads. Raises StepOrderError outside an open step, and for a parameter that has been there."""
        if self._taken is None:
            raise StepOrderError(f"{names[0]}: no step is open")
        twice = self._taken.intersection(names)
        if twice:
            raise StepOrderError(f"{min(twice)}: its gradient of step {self._step} has been taken")
        self._taken.update(names)
        payloads = [self._coded(name, gradient.reshape(-1)) for name, gradient in zip(names, gradients, strict=True)]
        if len(kinds := {payload.dtype for payload in payloads}) > 1:
            raise self._wrong(
                f"payloads of {', '.join(names)} are {', '.join(sorted(map(str, kinds)))}, not of one type"
            )
        self._bytes[0] += sum(gradient.nbytes for gradient in gradients)
        self._bytes[1] += sum(payload.nbytes for payload in payloads)
        return payloads

    def decode(self, payload: torch.Tensor, elements: int) -> torch.Tensor:
        """The flat gradient of a payload, or of a sum of payloads. Raises InvalidInputError if it is none."""
        gradient = self._codec.decode(payload, elements)
        if gradient.shape != (elements,):
            raise self._wrong(f"decodes {elements} elements to {list(gradient.shape)}")
        return gradient

    def _coded(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """A payload. Raises InvalidInputError where it would be cut wrongly by whoever gets it."""
        payload: object = self._codec.encode(self._step, name, gradient)
        if not isinstance(payload, torch.Tensor) or payload.dim() != 1:
            made = list(payload.shape) if isinstance(payload, torch.Tensor) else type(payload).__name__
            raise self._wrong(f"payload of {name} is {made}, no tensor of one dimension")
        form = (len(payload), payload.dtype)
        first = self._forms.setdefault((len(gradient), gradient.dtype), form)
        if form != first:
            raise self._wrong(
                f"payload of {name} is {form[0]} x {form[1]}, and {first[0]} x {first[1]} for other gradients of"
                f" {len(gradient)} elements"
            )
        return payload

    def _wrong(self, why: str) -> InvalidInputError:
        return InvalidInputError("plugins", self.plugin, why)

    def memory(self) -> Mapping[str, torch.Tensor]:
        """The live memory. Raises StepOrderError unless it was announced."""
        self._require_announced()
        return self._codec.memory()

    def remember(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Replace the memory. Raises StepOrderError unless it was announced, ValueError where it does not fit.

        A codec that remembers nothing, as one with other options may, goes on without it.
        """
        self._require_announced()
        if memory and not self._codec.memory():
            log.warning(
                "ErrorMemoryReset: plug-in %s remembers nothing now; what was held back is left out", self.plugin
            )
            return
        self._codec.remember(memory)

    def _require_announced(self) -> None:
        if not self._announced:
            raise StepOrderError("the memory was asked for without a call through the gate")
        self._announced = False
