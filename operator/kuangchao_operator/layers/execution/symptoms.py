"""What the last words of one rank say about why it ended. Pure; looks at nothing but that rank's report."""

import re
from typing import Final

from kuangchao_contracts.reasons import Reason
from kuangchao_contracts.run import DRAINED_EXIT, OOM_KINDS, RankReport

PEER_LOSS: Final = re.compile(
    r"connection (closed|reset|refused)|broken pipe|connectfullmesh|socket (timeout|closed)|remote process exited"
    r"|timed out (waiting|after)|store.{0,40}timeout|recvvalue|nccl.{0,40}(remote|abort)|by peer",
    re.IGNORECASE,
)
PEER_LOSS_KINDS: Final = frozenset(
    {
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
        "ConnectionError",
        "ConnectionResetError",
        "BrokenPipeError",
        "PeerLost",
    }
)
SHARED_KINDS: Final = frozenset({"NonFiniteGradients"})
"""Kinds of error that every rank meets once one has met another: its gradients are added to theirs."""
NO_ERROR_KINDS: Final = frozenset({"ExitCode", "Unavailable"})
"""Kinds that blame no line of code: a bare exit code, and a control plane out of reach."""
NAMED: Final = {
    r.value: r
    for r in (
        Reason.USER_ERROR,
        Reason.TASK_NOT_FOUND,
        Reason.CHECKPOINT_CORRUPT,
        Reason.CHECKPOINT_PATH_IN_USE,
        Reason.STORAGE,
        Reason.OUT_OF_MEMORY,
        Reason.EARLY_EXIT,
        Reason.RANK_EXITED,
        Reason.AUDIT_UNAVAILABLE,
        Reason.INVALID_SPEC,
    )
}
"""Kinds of error that a rank names in our own words."""


def classify(report: RankReport) -> Reason:
    """What a rank's own words and its exit code say. A peer's death is an exit, not the user's error."""
    kind = (report.error_kind or "").rsplit(".", 1)[-1]
    if report.exit_code == DRAINED_EXIT:
        return Reason.EVICTED
    if kind in NAMED:
        return NAMED[kind]
    if kind in OOM_KINDS:
        return Reason.OUT_OF_MEMORY
    if kind in NO_ERROR_KINDS or peer_loss(report) or not report.error:
        return Reason.RANK_EXITED
    return Reason.USER_ERROR


def shared(report: RankReport) -> bool:
    """Whether a rank says what it would say of another one's fault as well."""
    return report.error_kind in SHARED_KINDS


def peer_loss(report: RankReport) -> bool:
    """Whether a rank says no more than that another one is gone."""
    kind = (report.error_kind or "").rsplit(".", 1)[-1]
    if kind in PEER_LOSS_KINDS:
        return True
    return kind in ("", "RuntimeError") and bool(report.error) and PEER_LOSS.search(report.error or "") is not None
