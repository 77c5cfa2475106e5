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

BURST: Final = 100.0
PER_SECOND: Final = 10.0
MAX_ADDRESSES: Final = 4_096
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


class FailureLimits:
    """A token bucket for each address that failed lately; those that failed longest ago are forgotten first."""

    def __init__(
        self,
        clock: Callable[[], float],
        burst: float = BURST,
        per_second: float = PER_SECOND,
        addresses: int = MAX_ADDRESSES,
    ) -> None:
        self._clock, self._burst, self._per_second, self._addresses = clock, burst, per_second, addresses
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def exhausted(self, address: str | None) -> bool:
        """Whether this address has failed so often that a call from it is refused unread."""
        return bool(self._buckets) and self._left(_network(address)) < 1

    def failed(self, address: str | None, error: e.KuangchaoError) -> None:
        """Count a failure, if it is one that counts."""
        if type(error) not in UNPROVEN:
            return
        network = _network(address)
        self._buckets[network] = max(0.0, self._left(network) - 1), self._clock()
        self._buckets.move_to_end(network)
        if len(self._buckets) > self._addresses:
            self._buckets.popitem(last=False)

    def _left(self, network: str) -> float:
        bucket = self._buckets.get(network)
        if bucket is None:
            return self._burst
        left, at = bucket
        return min(self._burst, left + max(0.0, self._clock() - at) * self._per_second)


def _network(address: str | None) -> str:
    """IPv6 callers are told apart by their /64: any host has that many addresses."""
    if address is None or ":" not in address:
        return address or ""
    try:
        return str(ipaddress.ip_network((address.split("%")[0], 64), strict=False))
    except ValueError:
        return address
