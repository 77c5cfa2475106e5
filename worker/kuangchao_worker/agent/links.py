"""Health of the links between the pods of a job: which are pinged, what is sent, and the figures that come of it. Pure.

Every pod pings its neighbours on a ring and pod 0, where all that the others found comes together. Words are sealed
with a key of the attempt, so none of an older attempt is heard, nor one of a stranger. Who reaches the attempt's store
can learn that key, since torch's store keeps nothing from who connects. Figures are reported; nothing is decided from
them.
"""

import hashlib
import hmac
import ipaddress
import statistics
from collections import deque
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import AfterValidator, Field, ValidationError

from kuangchao_contracts.base import Contract
from kuangchao_contracts.run import PodIndex

WINDOW: Final = 60
"""Pings of a link that its figures are made from: the newest ones."""
PATIENCE: Final = 3.0
"""Seconds after which a ping without answer is lost."""
SILENCE: Final = 10
"""Intervals without a word after which pod 0 takes the link to a pod to be broken."""
CROWD: Final = 256
"""Pings that pod 0 answers in a second: in a larger gang those that are no neighbours ping it less often."""
SEAL: Final = 16
"""Bytes before each word: BLAKE2b with the key."""
MAX_WORD: Final = 1_024


def _numeric(host: str) -> str:
    """The address as it is. Raises ValueError for a name: looking it up would keep the agent's heartbeats waiting."""
    ipaddress.ip_address(host)
    return host


class Neighbour(Contract):
    """Where a pod is heard."""

    pod: PodIndex
    host: Annotated[str, Field(max_length=64), AfterValidator(_numeric)]
    port: Annotated[int, Field(ge=1, le=65_535)]


class Finding(Contract):
    """What a pod found of its links: the one that loses most, and the slowest by round trip."""

    lossy_peer: PodIndex
    loss: Annotated[float, Field(ge=0, le=1)]
    slow_peer: PodIndex
    seconds: Annotated[float, Field(ge=0, le=PATIENCE)] | None = None
    """None: nothing came back."""


class Word(Contract):
    """A ping, or the answer to one."""

    sender: PodIndex
    to: PodIndex
    number: Annotated[int, Field(ge=0, le=2**53)]
    answer: bool = False
    held: Annotated[int, Field(ge=0, le=2**53)] = 0
    """Nanoseconds between the arrival of a ping and its answer, which are not the network's."""
    finding: Finding | None = None
    """In pings to pod 0."""
    leaving: bool = False
    """In a pod's last ping to pod 0: that it says nothing any more is no fault of a link."""
    neighbours: Annotated[tuple[Neighbour, ...], Field(max_length=2)] = ()
    """In pod 0's answers: those whose addresses it knows."""


@dataclass(slots=True)
class Pinged:
    """A ping under way."""

    peer: int
    began: float
    sent: int = 0
    """Nanoseconds of real time, as the kernel's stamp of the answer."""


def key_of(store_prefix: str) -> bytes:
    """The key of an attempt, from the random prefix of its store, which the gang alone is told."""
    return hmac.digest(store_prefix.encode(), b"kuangchao links", "sha256")


def sealed(key: bytes, word: Word) -> bytes:
    """A datagram."""
    content = word.canonical()
    return hashlib.blake2b(content, key=key, digest_size=SEAL).digest() + content


def opened(key: bytes, raw: bytes) -> Word | None:
    """The word in a datagram; None for whatever was not sealed with this key."""
    content = raw[SEAL:]
    mine = hashlib.blake2b(content, key=key, digest_size=SEAL).digest()
    if len(raw) > MAX_WORD or not hmac.compare_digest(mine, raw[:SEAL]):
        return None
    try:
        return Word.model_validate_json(content)
    except ValidationError:
        return None


def ring(pod: int, pods: int) -> tuple[int, ...]:
    """The neighbours of a pod on the ring of all, without itself."""
    return tuple(sorted({(pod - 1) % pods, (pod + 1) % pods} - {pod}))


@dataclass(slots=True)
class Link:
    """The newest pings over one link: seconds of the round trip, or None for a lost one."""

    trips: deque[float | None] = field(default_factory=lambda: deque(maxlen=WINDOW))

    @property
    def loss(self) -> float:
        """Fraction of lost pings."""
        return sum(trip is None for trip in self.trips) / len(self.trips) if self.trips else 0.0

    @property
    def seconds(self) -> float | None:
        """Median round trip of those that came back; None for none."""
        back = [trip for trip in self.trips if trip is not None]
        return statistics.median(back) if back else None


class Links:
    """What one pod knows. Times come from the caller: `now` in seconds of a clock that never goes back."""

    def __init__(self, pod: int, pods: int, now: float) -> None:
        self.pod, self._pods, self._began = pod, pods, now
        self._ring = ring(pod, pods)
        self._links: dict[int, Link] = {}
        self._pinged: dict[int, Pinged] = {}
        self._due: dict[int, float] = {}
        self._number = 0
        self.addresses: dict[int, tuple[str, int]] = {}
        """Where pods are heard: pod 0 by the job's word, the others as pod 0 heard them and as it tells their ring."""
        self._told: dict[int, tuple[float, Finding | None]] = {}
        self._gone: set[int] = set()

    # ---- out

    def pings(self, now: float) -> list[Word]:
        """What to send now, at most one word a second for each peer; whatever has waited too long is lost."""
        for number, ping in list(self._pinged.items()):
            if now - ping.began >= PATIENCE:
                del self._pinged[number]
                self._link(ping.peer).trips.append(None)
        return [self._ping(peer, now) for peer in self._peers() if now >= self._due.get(peer, now)]

    def sent(self, number: int, real: int) -> None:
        """A ping is sent at this real time, in nanoseconds."""
        self._pinged[number].sent = real

    def farewell(self) -> Word | None:
        """The last word, for pod 0; None where it is ourselves, or was never found."""
        if self.pod == 0 or 0 not in self.addresses:
            return None
        return Word(sender=self.pod, to=0, number=self._number + 1, leaving=True)

    def _peers(self) -> list[int]:
        return [peer for peer in sorted({0, *self._ring} - {self.pod}) if peer in self.addresses]

    def _ping(self, peer: int, now: float) -> Word:
        self._number += 1
        self._due[peer] = now + (1.0 if peer in self._ring else self._interval)
        self._pinged[self._number] = Pinged(peer, now)
        return Word(sender=self.pod, to=peer, number=self._number, finding=self.finding() if peer == 0 else None)

    @property
    def _interval(self) -> float:
        """Seconds between pings to pod 0 from pods that are not its neighbours."""
        return max(1.0, self._pods / CROWD)

    # ---- in

    def hear(self, word: Word, source: tuple[str, int], now: float, arrived: int) -> Word | None:
        """Take in a word that arrived at a real time, in nanoseconds; the answer, if it is a ping."""
        if word.to != self.pod or not self._knows(word.sender):
            return None
        if word.answer:
            self._answered(word, now, arrived)
            return None
        if self.pod != 0:
            return Word(sender=self.pod, to=word.sender, number=word.number, answer=True)
        if word.leaving:
            self._forget({word.sender})
            self._gone.add(word.sender)
            return None
        self.addresses[word.sender] = source
        self._told[word.sender] = (now, word.finding)
        near = tuple(Neighbour(pod=p, host=h, port=n) for p, (h, n) in self._near(word.sender))
        return Word(sender=0, to=word.sender, number=word.number, answer=True, neighbours=near)

    def _knows(self, pod: int) -> bool:
        if self.pod == 0:
            return 0 < pod < self._pods and pod not in self._gone
        return pod == 0 or pod in self._ring

    def _near(self, pod: int) -> Iterator[tuple[int, tuple[str, int]]]:
        return ((peer, self.addresses[peer]) for peer in ring(pod, self._pods) if peer in self.addresses)

    def _answered(self, word: Word, now: float, arrived: int) -> None:
        ping = self._pinged.get(word.number)
        if ping is None or ping.peer != word.sender:
            return
        del self._pinged[word.number]
        outside, longest = (arrived - ping.sent - word.held) * 1e-9, now - ping.began
        # a clock that was set meanwhile says nothing: then the time until we were woken has to do
        self._link(ping.peer).trips.append(outside if 0 <= outside <= longest else min(longest, PATIENCE))
        if word.sender == 0:
            told = {near.pod: (near.host, near.port) for near in word.neighbours if near.pod in self._ring}
            self._forget(self.addresses.keys() - told.keys() - {0})
            self.addresses |= told

    def _forget(self, pods: Set[int]) -> None:
        """These have left; what was on its way to them was not lost."""
        for pod in pods:
            self.addresses.pop(pod, None)
            self._told.pop(pod, None)
            self._links.pop(pod, None)
        self._pinged = {number: ping for number, ping in self._pinged.items() if ping.peer not in pods}

    def _link(self, peer: int) -> Link:
        return self._links.setdefault(peer, Link())

    # ---- what comes of it

    def finding(self) -> Finding | None:
        """What this pod found of its own links; None as long as it has found nothing."""
        links = {peer: link for peer, link in self._links.items() if link.trips}
        if not links:
            return None
        lossy = max(links, key=lambda peer: links[peer].loss)
        slow = max(links, key=lambda peer: links[peer].seconds or 0.0)
        return Finding(lossy_peer=lossy, loss=links[lossy].loss, slow_peer=slow, seconds=links[slow].seconds)

    def metrics(self, now: float) -> dict[str, str]:
        """On pod 0: the worst of all links of the gang, as texts by name. Three of them, however many links there are.

        `linkLatencySeconds` is the slowest link's round trip, `linkLoss` the largest fraction of lost pings, and
        `worstLink` says which link loses most or, where none does, which is slowest.
        """
        own = self.finding()
        found = [(0, own)] if own is not None else []
        found += [(pod, said) for pod, (_, said) in self._told.items() if said is not None]
        lossy = [(f.loss, pod, f.lossy_peer) for pod, f in found] + [(1.0, pod, 0) for pod in self._silent(now)]
        slow = [(f.seconds, pod, f.slow_peer) for pod, f in found if f.seconds is not None]
        if not lossy:
            return {}
        loss, *ends = max(lossy)
        told = {"linkLoss": f"{loss:.6g}"}
        if slow:
            seconds, *slowest = max(slow)
            told["linkLatencySeconds"] = f"{seconds:.6g}"
            ends = ends if loss else slowest
        return told | {"worstLink": "pods {}-{}".format(*sorted(ends))}

    def _silent(self, now: float) -> Iterator[int]:
        """Pods that pod 0 does not hear; what they find does not reach us either."""
        for pod in range(1, self._pods):
            heard = self._told[pod][0] if pod in self._told else self._began
            if pod not in self._gone and now - heard >= SILENCE * self._interval:
                yield pod
