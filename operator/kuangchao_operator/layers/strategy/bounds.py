"""The nearest legal value of a member that a schema refuses by itself: its bound, or the words that it may be. Pure."""

from typing import Final

from pydantic_core import ErrorDetails

_LIMITS: Final = ("ge", "le", "gt", "lt", "expected")


def nearest(fault: ErrorDetails) -> object | None:
    """What a fault says that it wanted; None where it says nothing of the kind."""
    context = fault.get("ctx", {})
    return next((context[name] for name in _LIMITS if name in context), None)
