"""Sums of squares of what a rank has of the gradients, in fp64, without fp64 copies of them. Knows no ranks.

A copy of every gradient in fp64 costs more than an optimizer's step: its memory is new, so the kernel clears it first.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Final

import torch

ROW: Final = 4_096
"""Elements that are added up in fp32: so few that only the rounding of fp32 is left, however large a tensor is."""


def sum_of_squares(pieces: Sequence[torch.Tensor], *, exact: bool) -> torch.Tensor:
    """One fp64 number on the pieces' device; `exact` adds up each element in fp64, else rows of `ROW` in fp32.

    The same bits for the same values laid out alike in memory.
    """
    if not pieces:
        return torch.zeros((), dtype=torch.float64)
    # on a GPU adding up in fp64 is one kernel, and costs no more
    in_rows = not exact and pieces[0].device.type == "cpu"
    norms = _of_rows(pieces) if in_rows else torch.stack(_norms(pieces, torch.float64))
    return norms.double().square().sum()


def _of_rows(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    kind = reduce(torch.promote_types, (piece.dtype for piece in pieces), torch.float32)
    long, short = [], []
    for piece in map(_flat, pieces):
        whole = piece.numel() // ROW * ROW
        if whole:
            long.append(torch.linalg.vector_norm(piece[:whole].view(-1, ROW), dim=1, dtype=kind))
        if whole < piece.numel():
            short.append(piece[whole:])
    if short:
        long.append(torch.stack(_norms(short, kind)))
    return torch.cat(long) if long else torch.zeros(0)


def _norms(pieces: Sequence[torch.Tensor], kind: torch.dtype) -> list[torch.Tensor]:
    return list(torch._foreach_norm(list(pieces), 2, kind))  # noqa: SLF001 - torch's own clipping calls it; it has no other name


def _flat(piece: torch.Tensor) -> torch.Tensor:
    """Its elements as they lie in memory, where gradients of matrices may be transposed: other orders are copies."""
    if piece.is_contiguous():
        return piece.view(-1)
    return piece.permute(sorted(range(piece.dim()), key=piece.stride, reverse=True)).contiguous().view(-1)
