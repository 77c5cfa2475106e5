"""Merkle trees against published vectors and against the recursive definition of RFC 6962."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts import merkle

LEAVES = [
    bytes.fromhex(text)
    for text in (
        "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
    )
]  # fmt: skip
"""The test vectors of the Certificate Transparency reference implementation: entries, then roots by tree size."""
ROOTS = {
    0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    4: "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    5: "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    6: "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}
entries = st.lists(st.binary(max_size=8), max_size=70)


def naive(leaves: list[bytes]) -> bytes:
    """MTH of RFC 6962 section 2.1, written down from its text."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + naive(leaves[:k]) + naive(leaves[k:])).digest()


def naive_consistency(m: int, leaves: list[bytes], whole: bool = True) -> list[bytes]:
    """SUBPROOF of RFC 6962 section 2.1.2."""
    n = len(leaves)
    if m == n:
        return [] if whole else [naive(leaves)]
    k = 1
    while k * 2 < n:
        k *= 2
    if m <= k:
        return [*naive_consistency(m, leaves[:k], whole), naive(leaves[k:])]
    return [*naive_consistency(m - k, leaves[k:], False), naive(leaves[:k])]


def hashes(leaves: list[bytes]) -> list[bytes]:
    return [merkle.leaf_hash(leaf) for leaf in leaves]


def tree(leaves: list[bytes], begin: int = 0) -> merkle.Frontier:
    return merkle.Frontier(begin).extend(hashes(leaves[begin:]))


@pytest.mark.parametrize(("size", "root"), ROOTS.items())
def test_published_roots(size: int, root: str) -> None:
    assert tree(LEAVES[:size]).root().hex() == root
    assert naive(LEAVES[:size]).hex() == root


@given(entries)
def test_root_is_that_of_the_definition(leaves: list[bytes]) -> None:
    assert tree(leaves).root() == naive(leaves)


@given(entries, st.data())
def test_peaks_carry_on_where_they_were_saved(leaves: list[bytes], data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(leaves)))
    half = tree(leaves[:size])
    again = merkle.Frontier.of_peaks(size, half.peaks)
    assert again.extend(hashes(leaves[size:])).root() == naive(leaves)
    assert half.root() == naive(leaves[:size])


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=70, unique=True), st.data())
def test_inclusion(leaves: list[bytes], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(leaves) - 1))
    proof = merkle.inclusion_proof(index, len(leaves), merkle.leaves_hash(hashes(leaves)))
    leaf, root = merkle.leaf_hash(leaves[index]), naive(leaves)
    assert merkle.includes(index, len(leaves), leaf, proof, root)
    for other in {0, index - 1, index + 1, len(leaves)} - {index}:
        assert not merkle.includes(other, len(leaves), leaf, proof, root)
    assert not merkle.includes(index, len(leaves), merkle.leaf_hash(b"another"), proof, root)
    for wrong in ([*proof, root], proof[:-1] if proof else [root], [merkle.node_hash(p, p) for p in proof] or [leaf]):
        assert not merkle.includes(index, len(leaves), leaf, wrong, root)


@given(entries.filter(bool), st.data())
def test_consistency(leaves: list[bytes], data: st.DataObject) -> None:
    new = len(leaves)
    old = data.draw(st.integers(1, new))
    proof = merkle.consistency_proof(old, new, merkle.leaves_hash(hashes(leaves)))
    assert list(proof) == naive_consistency(old, leaves)
    before, after = naive(leaves[:old]), naive(leaves)
    assert merkle.consistent(old, new, before, after, proof)
    changed = merkle.leaf_hash(b"another")
    assert not merkle.consistent(old, new, changed, after, proof)
    assert not merkle.consistent(old, new, before, changed, proof)
    assert not merkle.consistent(old, new, before, after, [*proof, changed])
    if proof:
        assert not merkle.consistent(old, new, before, after, proof[:-1])
    assert not merkle.consistent(new + 1, new, before, after, proof)


@given(entries.filter(bool), st.data())
def test_consistency_from_saved_peaks_and_the_leaves_since(leaves: list[bytes], data: st.DataObject) -> None:
    new = len(leaves)
    old = data.draw(st.integers(0, new))
    known = tree(leaves[:old]).subtrees() | tree(leaves, old).subtrees()
    proof = merkle.consistency_proof(old, new, merkle.range_hash(known))
    assert merkle.consistent(old, new, naive(leaves[:old]), naive(leaves), proof)


def test_a_leaf_cannot_pass_for_a_node() -> None:
    left, right = hashes([b"a", b"b"])
    assert merkle.leaf_hash(left + right) != merkle.node_hash(left, right)
    assert tree([left + right]).root() != tree([b"a", b"b"]).root()


@pytest.mark.parametrize(("size", "peaks"), [(3, 1), (4, 2), (0, 1), (-1, 0), (1, 0)])
def test_peaks_that_do_not_fit_a_size(size: int, peaks: int) -> None:
    with pytest.raises(ValueError, match="peaks do not make a tree"):
        merkle.Frontier.of_peaks(size, [bytes(32)] * peaks)


def test_beyond_the_tree() -> None:
    of = merkle.leaves_hash(hashes(LEAVES))
    with pytest.raises(ValueError, match="not in a tree"):
        merkle.inclusion_proof(8, 8, of)
    with pytest.raises(ValueError, match="not the beginning"):
        merkle.consistency_proof(9, 8, of)
    with pytest.raises(ValueError, match="no root"):
        tree(LEAVES, 3).root()
    with pytest.raises(KeyError):
        merkle.range_hash({})(0, 2)
