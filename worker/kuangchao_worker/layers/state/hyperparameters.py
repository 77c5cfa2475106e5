"""What of an optimizer ranks must have alike."""

from typing import Any

import torch
from torch.optim import Optimizer


def hyperparameters(optimizer: Optimizer) -> str:
    """Its class, and how it updates each group as far as plain values tell; to six digits, since machines differ."""
    groups = [sorted({**group, "params": len(group["params"])}.items()) for group in optimizer.param_groups]
    told = [[(key, words) for key, value in group if (words := _told(value)) is not None] for group in groups]
    return f"{type(optimizer).__qualname__} {told}"


def _told(value: Any) -> str | None:
    """None for what has no words that are the same in every process."""
    if isinstance(value, torch.Tensor):
        return _told(value.item()) if value.numel() == 1 and not value.is_meta else None
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        told = [_told(item) for item in value]
        return None if None in told else str(told)
    return repr(value) if isinstance(value, bool | int | str | type(None)) else None
