"""Whether what is to be saved could be read back: a checkpoint is opened without running code, so it holds none."""

import io
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from kuangchao_contracts.errors import InvalidInputError

PLAIN: Final = frozenset({int, float, bool, str, bytes, complex, type(None), torch.Tensor, torch.nn.Parameter})
PARTS: Final = {"module": "task.model", "optimizer": "task.optimizer", "scheduler": "task.scheduler"}
"""What of a task an entry of a checkpoint is a part of, by the first part of its name."""


def readable(payloads: Mapping[str, Any]) -> dict[str, Any]:
    """The files with NumPy's numbers as Python's, since a schedule that computes with NumPy leaves some.

    Raises InvalidInputError naming the first entry that restoring would refuse to open.
    """
    return {file: _readable(content, ()) for file, content in payloads.items()}


def _readable(value: Any, path: tuple[Any, ...]) -> Any:
    if type(value) in PLAIN:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {_readable(key, path): _readable(item, (*path, key)) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_readable(item, (*path, number)) for number, item in enumerate(value))
    if not _opens(value):
        name = ".".join(map(str, path))
        field = next((field for part, field in PARTS.items() if part in name.split(".")), "checkpoint")
        found = f"{type(value).__module__}.{type(value).__qualname__}"
        why = f"is the class of {name}, and a checkpoint is opened without running code"
        raise InvalidInputError(field, found, why, "tensors, numbers, texts, and lists and dicts of them")
    return value


def _opens(value: Any) -> bool:
    """Whether torch reads it back: it knows some more kinds (sizes, devices, counters) than those above."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # noqa: BLE001 - code of the task says how its objects are saved
        return False
    return True
