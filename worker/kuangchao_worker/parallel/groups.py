"""Which ranks share the tokens and experts of the forward and backward pass that runs just now."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist


@dataclass(slots=True)
class Groups:
    """Groups of this rank; None where the plan does not divide that way. `attended`: whether attention was called."""

    context: dist.ProcessGroup | None = None
    expert: dist.ProcessGroup | None = None
    attended: bool = False


_ALONE = Groups()
# not a context variable: what is recomputed in a backward pass may run on a thread of autograd's own
_present = _ALONE


def present() -> Groups:
    """Those in force; empty ones outside `divided_over`."""
    return _present


@contextmanager
def divided_over(groups: Groups) -> Iterator[None]:
    """Around forward and backward: attention and experts go over these groups."""
    global _present  # noqa: PLW0603 - see above
    _present = groups
    try:
        yield
    finally:
        _present = _ALONE
