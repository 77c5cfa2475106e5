"""Whole weights that meet what lies on several tensor ranks: torch's word for it names no module, ours does."""

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Final

from torch import nn

from kuangchao_contracts.errors import InvalidInputError

SIGN: Final = "mixed torch.Tensor and DTensor"


@contextmanager
def named(model: nn.Module) -> Iterator[None]:
    """Around a forward pass: raise InvalidInputError for the module of the model in which that happened."""
    try:
        yield
    except RuntimeError as error:
        if SIGN not in str(error):
            raise
        names = {id(part): name for name, part in model.named_modules()}
        called = [id(frame.f_locals.get("self")) for frame, _ in walk_tb(error.__traceback__)]
        name = next((names[part] for part in reversed(called) if part in names), "")
        why = (
            "has no style, and its whole weights are given what tensor ranks share (a DTensor), as all is that a module"
        )
        why += " of style whole holds where the plan has sequence"
        raise InvalidInputError("task.rules.tensor", name, why, "a style for it, or plan.sequence false") from error
