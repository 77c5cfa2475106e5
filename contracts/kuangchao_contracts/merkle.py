"""Merkle trees of RFC 6962 (hashing and proofs as RFC 9162 states them) over stored bytes. Pure; knows no records.

Signer, store and auditor must hash alike, so it is here. Leaf and node hashes begin with different bytes: no record can
pass for an inner node. A proof that is missing, too short or too long never counts as one.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final

HASH_BYTES: Final = 32
LEAF, NODE = b"\x00", b"\x01"
EMPTY_ROOT: Final = hashlib.sha256(b"").digest()
RangeHash = Callable[[int, int], bytes]
"""Root of the tree over the leaves [low, high)."""


def leaf_hash(data: bytes) -> bytes:
    """Hash of one entry."""
    return hashlib.sha256(LEAF + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash of an inner node."""
    return hashlib.sha256(NODE + left + right).digest()


class Frontier:
    """Compact form of the leaves [begin, end): one hash per largest whole subtree in it, so few of them."""

    def __init__(self, begin: int = 0) -> None:
        self.begin, self.end = begin, begin
        self._hashes: list[bytes] = []
        self._starts: list[int] = []

    @classmethod
    def of_peaks(cls, size: int, peaks: Sequence[bytes]) -> "Frontier":
        """The leaves [0, size) from what `peaks` gave. Raises ValueError when the numbers do not fit."""
        starts = [0]
        for bit in range(size.bit_length() - 1, -1, -1):
            if size >> bit & 1:
                starts.append(starts[-1] + (1 << bit))
        if size < 0 or len(peaks) != len(starts) - 1 or any(len(peak) != HASH_BYTES for peak in peaks):
            raise ValueError(f"{len(peaks)} peaks do not make a tree of {size} leaves")
        frontier = cls()
        frontier.end, frontier._hashes, frontier._starts = size, list(peaks), starts[:-1]
        return frontier

    @property
    def peaks(self) -> tuple[bytes, ...]:
        """The hashes, leftmost first."""
        return tuple(self._hashes)

    def copy(self) -> "Frontier":
        """An independent copy."""
        twin = Frontier(self.begin)
        twin.end, twin._hashes, twin._starts = self.end, self._hashes.copy(), self._starts.copy()
        return twin

    def append(self, leaf: bytes) -> None:
        """Take the hash of the next leaf in."""
        start, width, hashes, starts = self.end, 1, self._hashes, self._starts
        self.end = start + 1
        # a subtree of `width` that begins at an odd multiple of it has a left sibling, which is whole if it is ours
        while start & width and starts and starts[-1] == start - width:
            leaf = hashlib.sha256(NODE + hashes.pop() + leaf).digest()
            start = starts.pop()
            width <<= 1
        hashes.append(leaf)
        starts.append(start)

    def extend(self, leaves: Iterable[bytes]) -> "Frontier":
        """Take several leaf hashes in; returns itself."""
        for leaf in leaves:
            self.append(leaf)
        return self

    def root(self) -> bytes:
        """Root of the tree. Raises ValueError unless it starts at the first leaf."""
        if self.begin:
            raise ValueError("a frontier that does not start at leaf 0 has no root")
        if not self._hashes:
            return EMPTY_ROOT
        root = self._hashes[-1]
        for peak in reversed(self._hashes[:-1]):
            root = node_hash(peak, root)
        return root

    def subtrees(self) -> dict[tuple[int, int], bytes]:
        """Its hashes by the leaves that they cover."""
        return dict(zip(pairwise([*self._starts, self.end]), self._hashes, strict=True))


def range_hash(known: dict[tuple[int, int], bytes]) -> RangeHash:
    """Roots of whatever can be put together from known subtrees. Raises KeyError for what cannot."""

    def of(low: int, high: int) -> bytes:
        if (low, high) in known:
            return known[low, high]
        if high - low < 2:
            raise KeyError((low, high))
        middle = low + split(high - low)
        return node_hash(of(low, middle), of(middle, high))

    return of


def leaves_hash(leaves: Sequence[bytes]) -> RangeHash:
    """Roots of any range of leaf hashes that are all at hand."""

    def of(low: int, high: int) -> bytes:
        return Frontier().extend(leaves[low:high]).root()

    return of


def split(size: int) -> int:
    """How many of `size` leaves (two or more) are in the left subtree: the largest power of two below it."""
    return 1 << ((size - 1).bit_length() - 1)


def inclusion_proof(index: int, size: int, of: RangeHash) -> tuple[bytes, ...]:
    """Siblings on the way from a leaf to the root of a tree of `size` leaves, lowest first."""
    if not 0 <= index < size:
        raise ValueError(f"leaf {index} is not in a tree of {size}")
    proof: list[bytes] = []
    low, high = 0, size
    while high - low > 1:
        middle = low + split(high - low)
        if index < middle:
            proof.append(of(middle, high))
            high = middle
        else:
            proof.append(of(low, middle))
            low = middle
    return tuple(reversed(proof))


def consistency_proof(old: int, new: int, of: RangeHash) -> tuple[bytes, ...]:
    """That the tree of the first `old` leaves is the beginning of the tree of `new` (RFC 6962 section 2.1.2)."""
    if not 0 <= old <= new:
        raise ValueError(f"a tree of {old} leaves is not the beginning of one of {new}")
    if old in {0, new}:
        return ()
    proof: list[bytes] = []
    low, high, whole = 0, new, True
    while old != high:
        middle = low + split(high - low)
        if old <= middle:
            proof.append(of(middle, high))
            high = middle
        else:
            proof.append(of(low, middle))
            low, whole = middle, False
    if not whole:
        proof.append(of(low, high))
    return tuple(reversed(proof))


def includes(index: int, size: int, leaf: bytes, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether the proof shows that this leaf hash is number `index` of the tree (RFC 9162 section 2.1.3.2)."""
    if not 0 <= index < size:
        return False
    node, last, found = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if node & 1 or node == last:
            found = node_hash(sibling, found)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and found == root


def consistent(old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether the proof shows that the old tree is the beginning of the new one (RFC 9162 section 2.1.4.2)."""
    if old == new:
        return not proof and old_root == new_root
    if old == 0:
        return new > 0 and not proof and old_root == EMPTY_ROOT
    if not 0 < old < new or not proof:
        return False
    node, last = old - 1, new - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    # an old tree that is one whole subtree is its own first step
    path = [old_root, *proof] if old & (old - 1) == 0 else list(proof)
    was = now = path[0]
    for sibling in path[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            was, now = node_hash(sibling, was), node_hash(sibling, now)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            now = node_hash(now, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and was == old_root and now == new_root
