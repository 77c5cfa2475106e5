"""Error memory around a codec: what coding loses of a gradient is added to the next one, so that nothing is lost.

e <- (g + e) - decode(encode(g + e)), per rank and parameter, in fp32 (Seide et al. 2014; Karimireddy et al. 2019).
Kept by parameter name, never by place in a bucket: buckets are laid out anew after a restart.
"""

from collections.abc import Mapping

import torch

from kuangchao_compression import VERSION
from kuangchao_worker.plugins import Codec, Seat


class ErrorFeedback(Codec):
    """A codec with a memory of 4 bytes per parameter."""

    version = VERSION

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._memory: dict[str, torch.Tensor] = {}

    def seated(self, seat: Seat) -> None:
        """See Codec."""
        self._codec.seated(seat)

    def expect(self, elements: Mapping[str, int]) -> None:
        """See Codec."""
        self._memory = {name: torch.zeros(count) for name, count in elements.items()}

    def encode(self, step: int, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """See Codec."""
        kept = self._memory[name]
        if kept.device != gradient.device:
            kept = self._memory[name] = kept.to(gradient.device)
        wanted = gradient.float() + kept
        payload = self._codec.encode(step, name, wanted)
        lost = wanted.sub_(self._codec.decode(payload, len(wanted)))
        if len(lost) == 0:
            return payload  # there is no least of no numbers
        least, most = lost.aminmax()  # one pass, and NaN comes through
        if (most - least).isfinite():
            self._memory[name] = lost
        return payload

    def decode(self, payload: torch.Tensor, elements: int) -> torch.Tensor:
        """See Codec."""
        return self._codec.decode(payload, elements)

    def memory(self) -> Mapping[str, torch.Tensor]:
        """See Codec."""
        return self._memory

    def remember(self, memory: Mapping[str, torch.Tensor]) -> None:
        """See Codec."""
        for name in sorted(memory.keys() - self._memory.keys()):
            raise ValueError(f"error memory of {name}: the model has no parameter of that name")
        for name in sorted(self._memory.keys() - memory.keys()):
            raise ValueError(f"error memory of {name}: the checkpoint has none of that name")
        for name, tensor in memory.items():
            if tensor.shape != self._memory[name].shape:
                raise ValueError(
                    f"error memory of {name} has {tensor.numel()} elements, not {self._memory[name].numel()}"
                )
        for name, tensor in memory.items():
            self._memory[name].copy_(tensor)
