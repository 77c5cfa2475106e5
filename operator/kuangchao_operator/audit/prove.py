"""Proofs from a store: that a record is in it, that it continues a checkpoint which was noted elsewhere. Reads only.

Records stream by, so a proof from a day of millions takes seconds and no memory to speak of.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from kuangchao_contracts import merkle, notes
from kuangchao_contracts.auditproof import ExtensionProof, InclusionProof, ProveReply, ProveRequest
from kuangchao_contracts.errors import InvalidInputError, StorageError
from kuangchao_contracts.merkle import Frontier, leaf_hash
from kuangchao_operator.audit.shards import Shard, shards
from kuangchao_operator.audit.tree import Kept

Ranges = list[tuple[int, int]]


def prove(directory: Path, request: ProveRequest) -> ProveReply:
    """What the request asks for. Raises InvalidInputError, BadNoteError, StorageError."""
    return ProveReply(
        inclusion=inclusion(directory, request.seq) if request.seq is not None else None,
        extension=extension(directory, request.anchor) if request.anchor is not None else None,
    )


def inclusion(directory: Path, seq: int) -> InclusionProof:
    """Proof that record `seq` is in the store."""
    shard, first = _shard_with(directory, seq)
    covered = _newest(shard)
    index = seq - first
    if index >= covered.size:
        raise StorageError(f"record {seq} has no checkpoint yet; records up to {first + covered.size - 1} have one")
    wanted: Ranges = []
    merkle.inclusion_proof(index, covered.size, _noting(wanted))
    roots = _roots(_leaves(shard), [*wanted, (index, index + 1)])
    proof = merkle.inclusion_proof(index, covered.size, lambda low, high: roots[low, high])
    if not merkle.includes(index, covered.size, roots[index, index + 1], proof, bytes.fromhex(covered.root)):
        raise StorageError(f"{shard.name} does not give the root that was signed; see audit verify")
    body = next(shard.bodies(skip=index))
    return InclusionProof(
        seq=seq, index=index, body=body.decode(), proof=tuple(node.hex() for node in proof), checkpoint=covered.note
    )


def extension(directory: Path, anchor: str) -> ExtensionProof:
    """Proof that the newest checkpoint of the anchor's day continues the anchor."""
    noted = notes.parse(anchor)
    shard = next((shard for shard in shards(directory) if shard.day == noted.day), None)
    if shard is None:
        raise StorageError(f"the store has no records of {noted.day}, the day of the anchor")
    newest = _newest(shard)
    if newest.size < noted.size:
        raise StorageError(f"{shard.name} has a checkpoint of {newest.size} only, the anchor is of {noted.size}")
    wanted: Ranges = []
    merkle.consistency_proof(noted.size, newest.size, _noting(wanted))
    roots = _roots(_leaves(shard), wanted) if wanted else {}
    proof = merkle.consistency_proof(noted.size, newest.size, lambda low, high: roots[low, high])
    return ExtensionProof(note=newest.note, proof=tuple(node.hex() for node in proof))


def _shard_with(directory: Path, seq: int) -> tuple[Shard, int]:
    last = 0
    for shard in shards(directory):
        first, last = shard.span()
        if first <= seq <= last:
            return shard, first
    raise InvalidInputError("seq", seq, "is not in the store", last or None)


def _newest(shard: Shard) -> Kept:
    found = shard.checkpoints()
    if not found:
        raise StorageError(f"{shard.name} has no checkpoint")
    return found[-1]


def _leaves(shard: Shard) -> Iterator[bytes]:
    return map(leaf_hash, shard.bodies())


def _noting(wanted: Ranges) -> merkle.RangeHash:
    """Stands in for the hashes while it is found out which ones are needed."""

    def note(low: int, high: int) -> bytes:
        wanted.append((low, high))
        return b""

    return note


def _roots(leaves: Iterator[bytes], ranges: Iterable[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
    """Roots of ranges that do not overlap, from one pass over the leaves."""
    found, at = {}, 0
    for low, high in sorted(ranges):
        for _ in islice(leaves, low - at):
            pass
        tree = Frontier().extend(islice(leaves, high - low))
        if tree.end != high - low:
            raise StorageError(f"the day ends before record number {high}, which a checkpoint covers")
        found[low, high], at = tree.root(), high
    return found
