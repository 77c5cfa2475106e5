"""Tensors in mappings, lists and tuples, named ones too: batches as a task collates them, and states. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

import torch


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value made anew with each of its tensors changed. Mappings become dictionaries; whatever else is not made of
    the others stays as it is.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return remade(value, [mapped(item, change) for item in value])
    return value


def remade(like: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    """A sequence of the kind of another. A named tuple takes its items one by one."""
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
