"""Whether somebody else in this process makes a profile: torch makes one at a time, and none of ours may spoil theirs.

Looks at when profiles begin and end, never at what is in them. A second one that begins cancels the first, and one that
ends ends both; a profile that was prepared when ours began ends the process when it is written to a file.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from torch.autograd import profiler

BEGIN: Final = ("_prepare_profiler", "_enable_profiler")
END: Final = "_disable_profiler"
"""What every profile of torch, `torch.profiler` included, calls by these names in one module."""


class Watch:
    """Stands before the profiler's beginning and end. `give_way` is called before somebody else begins."""

    def __init__(self) -> None:
        self._ours = False
        self.theirs = False
        """Whether somebody else prepares a profile or makes one."""
        self.give_way: Callable[[], object] = lambda: None
        for name in (*BEGIN, END):
            setattr(profiler, name, self._seen(getattr(profiler, name), begins=name != END))

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Around the beginning or the end of a profile of ours."""
        before, self._ours = self._ours, True
        try:
            yield
        finally:
            self._ours = before

    def _seen(self, function: Callable[..., Any], *, begins: bool) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            if not self._ours:
                self.theirs = begins
                if begins:
                    self.give_way()
            return function(*given, **named)

        return call


@functools.cache
def watch() -> Watch:
    """The watch of this process, which has one profiler; it sees what begins after the first call."""
    return Watch()
