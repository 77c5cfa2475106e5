"""Which pods of a gang go to which node: all of them or none. Pure and deterministic.

GPU pools are packed, so that large gangs find whole nodes later and neighbours talk over the node's own links. CPU
pools are spread evenly: CPU ranks share nothing that makes one node faster, while cores, memory bandwidth and the loss
of one node are better shared by many. Pod indices stay contiguous on a node, so neighbouring ranks do too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kuangchao_contracts.api.trainingjob import NodeShare
from kuangchao_contracts.ranges import to_ranges


@dataclass(frozen=True, slots=True)
class Gang:
    """What is to be placed. `together` pods share a node, in runs that begin at a multiple: a plan may need that."""

    pods: int
    per_pod: int
    together: int = 1

    @property
    def devices(self) -> int:
        """Devices of the whole gang."""
        return self.pods * self.per_pod


def place(
    free: Mapping[str, int], gang: Gang, *, spread: bool, avoid: frozenset[str] = frozenset()
) -> tuple[NodeShare, ...] | None:
    """Shares of nodes for the whole gang given free devices by node, or None when it does not fit.

    Nodes in `avoid` are the last resort: a job must not wait for ever for want of the one node that failed it once.
    """
    run = gang.per_pod * gang.together
    room = {node: count // run for node, count in free.items() if count >= run}
    preferred = {node: count for node, count in room.items() if node not in avoid}
    choose, runs = _spread if spread else _pack, gang.pods // gang.together
    counts = choose(preferred, runs) or choose(room, runs)
    return _shares({node: count * gang.together for node, count in counts.items()}, gang.per_pod) if counts else None


def _pack(room: Mapping[str, int], pods: int) -> dict[str, int]:
    """Fewest nodes: the largest first, and for what is left the smallest that still takes all of it."""
    if sum(room.values()) < pods:
        return {}
    chosen: dict[str, int] = {}
    left, rest = pods, dict(room)
    while left:
        enough = [n for n in rest if rest[n] >= left]
        node = min(enough, key=lambda n: (rest[n], n)) if enough else min(rest, key=lambda n: (-rest[n], n))
        chosen[node] = min(left, rest.pop(node))
        left -= chosen[node]
    return chosen


def _spread(room: Mapping[str, int], pods: int) -> dict[str, int]:
    """As evenly as room allows over as many nodes as possible, roomiest nodes first."""
    if sum(room.values()) < pods:
        return {}
    order = sorted(room, key=lambda n: (-room[n], n))
    level, left = dict.fromkeys(order, 0), pods
    while left:
        open_nodes = [n for n in order if level[n] < room[n]][:left]
        # whole rounds at once: large gangs on few nodes must not take a loop turn per pod
        rounds = max(1, min(left // len(open_nodes), *(room[n] - level[n] for n in open_nodes)))
        for node in open_nodes:
            level[node] += rounds
        left -= rounds * len(open_nodes)
    return {n: count for n, count in level.items() if count}


def _shares(counts: Mapping[str, int], per_pod: int) -> tuple[NodeShare, ...]:
    shares, index = [], 0
    for node, count in counts.items():
        shares.append(NodeShare(node=node, devices=count * per_pod, pods=to_ranges(range(index, index + count))))
        index += count
    return tuple(shares)
