"""What an optimizer must be like where a plan divides what it updates."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker.pod.memory import ran_out
from kuangchao_worker.pod.peers import lost

FIELD: Final = "task.optimizer"
NEAREST: Final = "AdamW"
KEPT: Final = ("state", "param_groups")
"""What torch's optimizers keep, by parameter: a checkpoint in pieces is made of it."""


def require_common_state(optimizer: Optimizer) -> None:
    """Raise InvalidInputError for one that keeps something else, as one made of several does."""
    found = list(optimizer.state_dict())
    if sorted(found) != sorted(KEPT):
        why = f"has a state_dict of {found}; a plan that splits the model keeps {' and '.join(KEPT)} by parameter"
        raise InvalidInputError(FIELD, type(optimizer).__name__, why, NEAREST)


@contextmanager
def divided_by(optimizer: Optimizer) -> Iterator[None]:
    """Around what may be an optimizer's first step over parameters of which ranks have pieces.

    Raises InvalidInputError where torch has no way to carry it out in pieces, as with Adafactor.
    """
    first = not optimizer.state
    try:
        yield
    except RuntimeError as error:
        said = str(error)
        if not first or not _in_pieces(optimizer) or lost(error, said) or ran_out(type(error).__name__, said):
            raise
        why = f"cannot update parameters that ranks have pieces of: {said.splitlines()[0][:200]}"
        raise InvalidInputError(FIELD, type(optimizer).__name__, why, NEAREST) from error


def _in_pieces(optimizer: Optimizer) -> bool:
    return any(isinstance(parameter, DTensor) for group in optimizer.param_groups for parameter in group["params"])
