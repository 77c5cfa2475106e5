"""Codecs that change the type of a number or nothing; their payloads are added up on the way."""

from typing import ClassVar

import torch

from kuangchao_compression import VERSION
from kuangchao_worker.plugins import Codec


class Identity(Codec):
    """Nothing is changed: the same bits as without a plug-in. For measuring what the way itself costs."""

    version: ClassVar[str] = VERSION
    summable: ClassVar[bool] = True

    def encode(self, step: int, name: str, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """See Codec."""
        return gradient

    def decode(self, payload: torch.Tensor, elements: int) -> torch.Tensor:  # noqa: ARG002
        """See Codec."""
        return payload


class Bf16(Codec):
    """16 bits with the exponent of fp32 and 8 bits of precision: half the bytes, 2**-9 of relative error at most."""

    version: ClassVar[str] = VERSION
    summable: ClassVar[bool] = True

    def encode(self, step: int, name: str, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """See Codec."""
        return gradient.bfloat16()

    def decode(self, payload: torch.Tensor, elements: int) -> torch.Tensor:  # noqa: ARG002
        """See Codec."""
        return payload.float()
