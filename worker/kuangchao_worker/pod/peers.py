"""What a failure says of peers: whether a link to another rank broke. Pure.

The words are those of torch and of the libraries below it, which give most of it the class of any error.
"""

from typing import Final

from kuangchao_contracts.errors import PeerLostError

_SIGNS: Final = (
    "gloo",
    "Connection closed by peer",
    "Connection reset by peer",
    "NCCL",
    "Broken pipe",
    "Timed out waiting",
    "recvValue failed",
)
_KINDS: Final = ("DistBackendError", "DistNetworkError", "DistStoreError")


def lost(error: BaseException, text: str) -> bool:
    """Whether an error with these words is that of a broken collective."""
    if isinstance(error, PeerLostError) or type(error).__name__ in _KINDS:
        return True
    return isinstance(error, RuntimeError) and any(sign in text for sign in _SIGNS)
