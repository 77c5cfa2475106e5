"""A signing key is denied while ranks run: they go over to its successor without one refused call."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.keys import Jwks
from kuangchao_worker.pod.revocations import Revocations, write_revocations
from tests.unit.worker.fakegate import Issuer
from tests.unit.worker.test_authority import Rank


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    yield made
    made.close()


def test_new_leases_wait_for_their_key_and_the_denial_comes_with_both(rank: Rank) -> None:
    rank.call()
    old, rank.issuer = rank.issuer, Issuer()
    rank.deliver(1, time.time())
    rank.call(after=20)  # read again: signed by a key that the mounted copy does not show yet
    rank.call(after=40)
    jwks = Jwks(keys=(rank.issuer.entry,), denied=(old.entry.kid,))
    write_revocations(Path(rank.assigned.run_directory), Revocations(keys=frozenset(jwks.denied), jwks=jwks))
    rank.call(after=42)
    rank.issuer = old
    rank.deliver(1, time.time())
    rank.call(after=60)  # leases by the denied key are not taken over
    assert rank.log.count == 5
    assert rank.said() == []


def test_a_denied_key_without_a_successor_is_refused(rank: Rank) -> None:
    rank.call()
    kid = rank.issuer.entry.kid
    write_revocations(Path(rank.assigned.run_directory), Revocations(keys=frozenset({kid})))
    with pytest.raises(e.RevokedKeyError):
        rank.call(after=2)
