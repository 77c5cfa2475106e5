"""What a rank says of its end: an exit code and, for a failure, a kind that other processes can judge by."""

import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Final

from kuangchao_contracts.errors import InvalidInputError, KuangchaoError, PeerLostError
from kuangchao_contracts.reasons import Reason
from kuangchao_worker.pod.memory import ran_out
from kuangchao_worker.pod.peers import lost

FAILED_EXIT: Final = 1
_LIKE_A_PEERS: Final = frozenset({"RuntimeError", "ConnectionError", "ConnectionResetError", "BrokenPipeError"})
"""Classes of errors that a broken collective has, and a data server out of reach as well."""
_MAX_KIND: Final = 64
_STANDARD: Final = sys.stdlib_module_names | {"__main__"}
_NO_TASK: Final = frozenset({"kuangchao_worker", "kuangchao_contracts", "torch", "pydantic", "pydantic_core", "numpy"})
"""Packages that a rank needs itself: what is neither these nor standard library is a task's."""


def kind_of(error: BaseException) -> str:
    """Stable name of a failure: the code of our own errors, OutOfMemory for want of memory, PeerLost for a broken
    collective, UserError for what the task raised and looks like one, else the class name."""
    if isinstance(error, InvalidInputError):
        return Reason.INVALID_SPEC.value
    if isinstance(error, KuangchaoError):
        return error.code
    name, text = type(error).__name__[:_MAX_KIND], _message(error)
    if ran_out(name, text):
        return Reason.OUT_OF_MEMORY.value
    if name in _LIKE_A_PEERS and _raised_by_task(error):
        return Reason.USER_ERROR.value
    return PeerLostError.code if lost(error, text) else name


def layer_of(error: BaseException) -> str:
    """The layer whose turn it was, by name; algorithm for the task's own code, plugin for a plug-in's, "" for none."""
    found = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        package, _, rest = _module(frame).partition(".")
        if package == "kuangchao_worker" and rest.startswith("layers."):
            found = rest.split(".")[1]
        elif package == "kuangchao_worker" and rest.startswith("plugins"):
            found = "plugin"
        elif _of_task(frame) and found != "plugin":
            found = "algorithm"
    return found


def describe(error: BaseException, limit: int = 1_024) -> str:
    """The message, the layer, and where in the code it was raised, newest frames first to survive the cut."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = "; ".join(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in reversed(frames))
    exits = isinstance(error, SystemExit)
    said = f"sys.exit({_message(error)})" if exits else f"{type(error).__name__}: {_message(error)}"
    layer = layer_of(error)
    text = said[: limit - 300] + f" ({layer}{', ' if layer else ''}at {places})"[:300]
    # half characters, as names of files that are no UTF-8 have them, are no text for anybody else
    return text.encode("utf-8", "replace").decode()


def _message(error: BaseException) -> str:
    """What it says. That is code of the program's own, and may fail itself."""
    try:
        return repr(error.code) if isinstance(error, SystemExit) else str(error)
    except BaseException as problem:  # noqa: BLE001 - whatever it is, the rank still has to say how it ended
        return f"no message, which raised {type(problem).__name__}"


def _raised_by_task(error: BaseException) -> bool:
    """Whether a task raised it, or what the task called in the standard library; not torch, and not we."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    named = [frame for frame in reversed(frames) if _module(frame).partition(".")[0] not in _STANDARD]
    return bool(named) and _of_task(named[0])


def _of_task(frame: FrameType) -> bool:
    package, _, rest = _module(frame).partition(".")
    if package == "kuangchao_worker":
        return rest.startswith(("rank.algorithm", "rank.stages", "rank.chained", "tasks", "parallel"))
    return package not in _NO_TASK and package not in _STANDARD


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
