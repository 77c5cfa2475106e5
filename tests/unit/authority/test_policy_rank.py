"""A rank follows the policy that is published beside its keys, and keeps the one it has when that cannot be read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.policy import BUILT_IN
from kuangchao_operator.policy.reader import read_policy
from kuangchao_worker.rank.authority import REFRESH_SECONDS
from tests.unit.authority.policies import NARROW
from tests.unit.worker.test_authority import Rank

READERS = NARROW.replace("subject: agent", "subject: rank").replace("execution.join", "state.snapshot").replace(
    "task:owned", "param-store:assigned"
)  # fmt: skip


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    yield made
    made.close()


def publish(rank: Rank, text: str, generation: int) -> None:
    policy = read_policy("policy.yaml", text.encode(), generation)
    (rank.folder / "trust" / "policy.json").write_bytes(policy.canonical())


def test_a_right_that_is_taken_away_is_gone_at_the_next_refresh_though_the_token_is_remembered(rank: Rank) -> None:
    publish(rank, "extends: built-in", 1)
    rank.call()
    publish(rank, READERS, 2)
    with pytest.raises(e.StalePolicyError):
        rank.call(after=REFRESH_SECONDS)
    publish(rank, "extends: built-in", 3)
    rank.call(after=2 * REFRESH_SECONDS)


@pytest.mark.parametrize("content", [b"", b"{", b'{"generation": 9}', BUILT_IN.canonical()[:-9]])
def test_what_cannot_be_read_changes_nothing(rank: Rank, content: bytes) -> None:
    publish(rank, READERS, 2)
    with pytest.raises(e.StalePolicyError):
        rank.call()
    (rank.folder / "trust" / "policy.json").write_bytes(content)
    with pytest.raises(e.StalePolicyError):
        rank.call(after=REFRESH_SECONDS)


def test_a_newer_operator_may_say_more(rank: Rank) -> None:
    publish(rank, READERS, 2)
    file = rank.folder / "trust" / "policy.json"
    file.write_bytes(file.read_bytes().replace(b'{"generation"', b'{"author":"x","generation"', 1))
    with pytest.raises(e.StalePolicyError):
        rank.call()


def test_without_a_published_policy_the_built_in_rights_hold(rank: Rank) -> None:
    rank.call()


def test_leases_under_a_policy_that_has_not_come_yet_wait_for_it(rank: Rank) -> None:
    """The issuer stamps a new generation after two minutes; a mounted copy that is later must end no training."""
    publish(rank, "extends: built-in", 2)
    rank.call()
    rank.issuer.generation = 3
    rank.deliver(1, issued=rank.start + 200)
    rank.call(after=210)
    publish(rank, "extends: built-in # changed", 3)
    rank.call(after=210 + REFRESH_SECONDS)
    rank.call(after=400)
    assert rank.said() == [], "no call was refused, and none needed the grace of the lease before"
