"""Time of a collective: a latency for each hop and the bytes over the slowest link (alpha-beta). Pure.

Sources: Thakur et al. 2005 (ring and tree costs), nccl-tests PERFORMANCE.md (bytes that a member moves: 2 (n-1)/n of
an all-reduce, (n-1)/n of the others). All times are seconds, all sizes the bytes of the whole tensor.
"""

from kuangchao_operator.layers.strategy.timing.machine import Reach


def all_reduce(size: float, links: Reach, start: float) -> float:
    """Reduce-scatter and all-gather, or up and down a tree where latency rules; `start` is the launch."""
    if links.size == 1:
        return 0.0
    tree = start + 2 * _depth(links) + 2 * size / _slowest(links)
    return min(2 * scatter(size, links, start) - start, tree)


def scatter(size: float, links: Reach, start: float) -> float:
    """All-gather or reduce-scatter: the better of one ring over all, and rings by level."""
    if links.size == 1:
        return 0.0
    n, local, away = links.size, links.local, links.away
    hops = (n - away) * links.near_latency + (away - 1) * links.far_latency
    ring = hops + (n - 1) / n * size / _slowest(links)
    if local == 1 or away == 1:
        return start + ring
    inner = (local - 1) * links.near_latency + (local - 1) / local * size / links.near
    outer = (away - 1) * links.far_latency + (away - 1) / away * (size / local) / links.far
    return start + min(ring, inner + outer + start)


def all_to_all(size: float, links: Reach, start: float, *, far: float | None = None) -> float:
    """Every member sends an equal piece of its `size` bytes to every other; near and far links work side by side.

    `far` is the size for members far away, where what goes to several of them on one node travels once.
    """
    away = size if far is None else far
    if links.size == 1:
        return 0.0
    n, local = links.size, links.local
    near = (local - 1) * links.near_latency + (local - 1) / n * size / links.near
    distant = (links.away - 1) * links.far_latency + (n - local) / n * away / links.far
    return start + max(near, distant)


def send(size: float, links: Reach, start: float) -> float:
    """From one member to its neighbour; a stage's neighbours are as far as its farthest one."""
    if links.away == 1:
        return start + links.near_latency + size / links.near
    return start + links.far_latency + size / links.far


def exposed(time: float, share: float, kernels: float) -> float:
    """What shows of a transfer beside `kernels`: what they are too short for, and at least 1 - `share` of it, since a
    transfer takes units and memory bandwidth from them."""
    return max(time * (1 - share), time - kernels)


def _slowest(links: Reach) -> float:
    """Bytes per second through one ring: where it leaves an island, the local members' far links carry it together."""
    if links.away == 1:
        return links.near
    far = links.far * links.local
    return far if links.local == 1 or far < links.near else links.near


def _depth(links: Reach) -> float:
    near = (links.local - 1).bit_length() * links.near_latency
    return near + (links.away - 1).bit_length() * links.far_latency
