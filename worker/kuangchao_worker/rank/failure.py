"""What a rank says of its end: an exit code and, for a failure, a kind that other processes can judge by."""

import traceback
from pathlib import Path
from typing import Final

from kuangchao_contracts.errors import InvalidInputError, KuangchaoError, PeerLostError
from kuangchao_contracts.reasons import Reason
from kuangchao_worker.pod.memory import ran_out

FAILED_EXIT: Final = 1
_PEER_SIGNS: Final = (
    "gloo",
    "Connection closed by peer",
    "Connection reset by peer",
    "NCCL",
    "Broken pipe",
    "Timed out waiting",
    "recvValue failed",
)


def kind_of(error: BaseException) -> str:
    """Stable name of a failure: the code of our own errors, OutOfMemory for want of memory, PeerLost for a broken
    collective, else the class name."""
    if isinstance(error, InvalidInputError):
        return Reason.INVALID_SPEC.value
    if isinstance(error, KuangchaoError):
        return error.code
    name = type(error).__name__
    if ran_out(name, str(error)):
        return Reason.OUT_OF_MEMORY.value
    distributed = name in ("DistBackendError", "DistNetworkError", "DistStoreError")
    broken = isinstance(error, RuntimeError) and any(sign in str(error) for sign in _PEER_SIGNS)
    return PeerLostError.code if distributed or broken else name


def layer_of(error: BaseException) -> str:
    """The layer whose turn it was, by name; algorithm for the task's own code, "" where it was none's."""
    found = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        package, _, rest = frame.f_globals.get("__name__", "").partition(".")
        if package == "kuangchao_worker" and rest.startswith("layers."):
            found = rest.split(".")[1]
        elif package == "kuangchao_worker" and rest.startswith(("rank.algorithm", "rank.stages", "tasks", "parallel")):
            found = "algorithm"
    return found


def describe(error: BaseException, limit: int = 1_024) -> str:
    """The message, the layer, and where in the code it was raised, newest frames first to survive the cut."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = "; ".join(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in reversed(frames))
    said = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
    layer = layer_of(error)
    return said[: limit - 300] + f" ({layer}{', ' if layer else ''}at {places})"[:300]
