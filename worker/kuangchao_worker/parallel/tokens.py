"""Which tokens of a sequence a context rank has, and a batch cut to these. Pure."""

from collections.abc import Mapping
from typing import Any

import torch

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker.parallel.nested import remade

RULE = "task.rules.tokens"


def pieces_of(rank: int, size: int) -> tuple[int, int]:
    """The pieces of a sequence, of 2 x `size` equal ones, that a context rank has: all ranks have the same share of a
    causal attention, since what is short in front is long behind.
    """
    return rank, 2 * size - 1 - rank


def cut(batch: Any, tokens: Mapping[str, int], rank: int, size: int) -> Any:
    """The batch with a context rank's tokens in each tensor that `tokens` names, along the dimension it gives there.

    A name is a key of a mapping, or a place in a tuple or list, "0" for a lone tensor; what is not named stays whole.
    Raises InvalidInputError for a name that is no tensor of the batch, or one whose tokens are not 2 x `size` equal
    pieces.
    """
    if isinstance(batch, torch.Tensor):
        return cut((batch,), tokens, rank, size)[0]
    names = list(batch) if isinstance(batch, Mapping) else [str(place) for place in range(len(batch))]
    missing = [name for name in tokens if name not in names]
    if missing:
        raise InvalidInputError(RULE, missing[0], "is in no batch of the task", ", ".join(names[:8]))
    values = list(batch.values()) if isinstance(batch, Mapping) else list(batch)
    own = [_own(v, tokens[n], rank, size) if n in tokens else v for n, v in zip(names, values, strict=True)]
    return dict(zip(names, own, strict=True)) if isinstance(batch, Mapping) else remade(batch, own)


def _own(tensor: torch.Tensor, dimension: int, rank: int, size: int) -> torch.Tensor:
    length = tensor.shape[dimension]
    if length % (2 * size):
        nearest = length - length % (2 * size)
        raise InvalidInputError(
            "sequence length", length, f"is not {2 * size} equal pieces for context={size}", nearest
        )
    step = length // (2 * size)
    parts = [tensor.narrow(dimension, piece * step, step) for piece in pieces_of(rank, size)]
    return torch.cat(parts, dim=dimension)
