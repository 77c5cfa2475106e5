"""What a verifier remembers of tokens, so that a lease in use costs a hash and not a signature check.

Holds claims, never decisions: whoever finds a token here judges its key, its times, its audience and the call again.
Keys are digests of whole tokens; only tokens that passed the strict gate are put in, so each has one key.
"""

import hashlib
from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


def digest(token: str) -> bytes:
    """What a token is remembered by."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class ExpiringCache(Generic[V]):
    """The values used last, each until its time; safe to use from several threads."""

    def __init__(self, size: int) -> None:
        self._size, self._lock = size, Lock()
        self._entries: OrderedDict[bytes, tuple[V, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes, now: float) -> V | None:
        """The value, which counts as a use of it; None when there is none or its time is over."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if entry[1] <= now:
                del self._entries[key]
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: bytes, value: V, until: float) -> None:
        """Keep a value; beyond the size the one not used for longest goes."""
        with self._lock:
            self._entries[key] = value, until
            self._entries.move_to_end(key)
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)
