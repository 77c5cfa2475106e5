"""How often callers at one address may send what is no token of ours before it is not even looked at.

Only failures count, and only those that leave it unproven who called, so nobody who calls rightly is ever slowed by
own calls; and a token that was verified a moment ago, or minted by this process, passes whatever else comes from its
address. What remains: a token from before our start waits for its turn behind an address (host network, NAT) that it
shares with a flood. Judges no token itself.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from kuangchao_contracts import errors as e
from kuangchao_contracts.claims import WORKER_ROLES, Claims

BURST: Final = 100.0
PER_SECOND: Final = 10.0
MAX_ADDRESSES: Final = 4_096
CALLS_BURST: Final = 200.0
CALLS_PER_SECOND: Final = 10.0
"""Of one pod. An agent that waits for its gang joins every 5 s; a checkpoint takes an exchange and a commit."""
MAX_SUBJECTS: Final = 65_536
UNPROVEN: Final[frozenset[type[e.KuangchaoError]]] = frozenset(
    {
        e.DuplicateKeyError,
        e.InvalidAlgorithmError,
        e.InvalidSignatureError,
        e.InvalidTypeError,
        e.MalformedKidError,
        e.MalformedTokenError,
        e.RetiredKeyError,
        e.RevokedKeyError,
        e.TokenTooLargeError,
        e.UnexpectedHeaderError,
        e.UnknownKeyError,
    }
)
"""Refusals before the signature was found good. All others name their subject and cost the caller a token of ours."""


class Buckets:
    """A token bucket for each key that was charged lately; those charged longest ago are forgotten first."""

    def __init__(self, clock: Callable[[], float], burst: float, per_second: float, keys: int) -> None:
        self._clock, self._burst, self._per_second, self._keys = clock, burst, per_second, keys
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def empty(self, key: str) -> bool:
        """Whether the key has nothing left."""
        return self._left(key) < 1

    def charge(self, key: str, amount: float = 1.0) -> None:
        """Take so much from the key's bucket, or what is left."""
        self._buckets[key] = max(0.0, self._left(key) - amount), self._clock()
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)

    def _left(self, key: str) -> float:
        bucket = self._buckets.get(key)
        if bucket is None:
            return self._burst
        left, at = bucket
        return min(self._burst, left + max(0.0, self._clock() - at) * self._per_second)


class CallLimits:
    """How many calls with records of their own each worker may still make: the volume that they fill is all jobs'.

    Layers are not limited; they are this process.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._buckets = Buckets(clock, CALLS_BURST, CALLS_PER_SECOND, MAX_SUBJECTS)

    def hasty(self, claims: Claims) -> bool:
        """Count a call; whether it is one too many."""
        if claims.role not in WORKER_ROLES:
            return False
        if self._buckets.empty(claims.sub):
            return True
        self._buckets.charge(claims.sub)
        return False


class FailureLimits:
    """How much each address may still fail."""

    def __init__(
        self,
        clock: Callable[[], float],
        burst: float = BURST,
        per_second: float = PER_SECOND,
        addresses: int = MAX_ADDRESSES,
    ) -> None:
        self._buckets = Buckets(clock, burst, per_second, addresses)

    def __len__(self) -> int:
        return len(self._buckets)

    def exhausted(self, address: str | None) -> bool:
        """Whether this address has failed so often that a call from it is refused unread."""
        return len(self._buckets) > 0 and self._buckets.empty(_network(address))

    def failed(self, address: str | None, error: e.KuangchaoError) -> None:
        """Count a failure, if it is one that counts."""
        if type(error) in UNPROVEN:
            self._buckets.charge(_network(address))


def _network(address: str | None) -> str:
    """IPv6 callers are told apart by their /64: any host has that many addresses."""
    if address is None or ":" not in address:
        return address or ""
    try:
        return str(ipaddress.ip_network((address.split("%")[0], 64), strict=False))
    except ValueError:
        return address
