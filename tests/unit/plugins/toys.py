"""A plug-in that somebody else could have written: sends half of each gradient."""

from collections.abc import Mapping

import torch

from kuangchao_worker.plugins import Codec

TOY = "toy"


class Halved(Codec):
    """Of no use, and enough to see that it was there."""

    version = "1"
    summable = True

    def encode(self, step: int, name: str, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / 2

    def decode(self, payload: torch.Tensor, elements: int) -> torch.Tensor:
        return payload


def halved(options: Mapping[str, str]) -> Codec:
    return Halved()


def raising(options: Mapping[str, str]) -> Codec:
    raise KeyError("depth")


class Unversioned(Halved):
    version = None  # type: ignore[assignment]  # planted

    def __init__(self, options: Mapping[str, str]) -> None: ...


class Other(Codec):
    """Written for another interface."""

    version = "1"

    def __init__(self, options: Mapping[str, str]) -> None: ...

    def compress(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient
