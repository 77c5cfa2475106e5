"""Denied signing keys, and rotation while tokens are minted and verified all the time."""

from pathlib import Path

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.keys import KeySet, KeyState
from kuangchao_contracts.tokens import TokenVerifier
from kuangchao_operator.signing.keystore import DAY, KeyStore
from tests.unit.authority.kit import ISSUER
from tests.unit.authority.test_issuer import Issuer

VERIFIER_SECONDS = 60
"""How old the key set of a verifier may be."""


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "keys")


def test_the_signing_key_has_a_successor_at_once_and_for_good(issuer: Issuer) -> None:
    token, kid = issuer.mint(), issuer.keys.signing_key()[0]
    assert issuer.keys.deny(kid)
    for _ in range(2):
        assert issuer.keys.signing_key()[0] != kid
        assert issuer.keys.jwks().denied == (kid,)
        with pytest.raises(e.RevokedKeyError):
            issuer.verify(token)
        assert issuer.verify(issuer.mint())
        assert not (issuer.directory / f"{kid}.key").exists()
        issuer.reopen()
    assert not issuer.keys.deny(kid)


def test_a_published_successor_is_taken_since_all_know_it(issuer: Issuer) -> None:
    issuer.clock.now += DAY - 120
    issuer.keys.tick()
    first, second = (key.kid for key in issuer.keys.jwks().keys)
    known = KeySet(issuer.keys.jwks())
    issuer.keys.deny(first)
    assert issuer.states() == [KeyState.ACTIVE]
    assert issuer.keys.signing_key()[0] == second
    assert TokenVerifier(known, ISSUER, issuer.clock).verify(issuer.mint(), "kc:interface")


def test_a_denied_successor_is_planned_anew(issuer: Issuer) -> None:
    issuer.clock.now += DAY - 120
    issuer.keys.tick()
    first, second = (key.kid for key in issuer.keys.jwks().keys)
    issuer.keys.deny(second)
    issuer.keys.tick()
    assert issuer.states() == [KeyState.ACTIVE, KeyState.PRE_ACTIVE]
    assert issuer.keys.signing_key()[0] == first
    assert second not in [key.kid for key in issuer.keys.jwks().keys]
    issuer.clock.now += 121
    assert issuer.keys.signing_key()[0] not in (first, second)


def test_a_denied_key_that_retires_takes_none_of_the_others_along(issuer: Issuer) -> None:
    issuer.clock.now += DAY - 120
    issuer.keys.tick()
    issuer.clock.now += 121
    issuer.keys.tick()
    old, new = (key.kid for key in issuer.keys.jwks().keys)
    token = issuer.mint()
    issuer.keys.deny(old)
    assert issuer.keys.signing_key()[0] == new
    assert issuer.verify(token)


def test_a_key_that_nobody_has_may_be_denied_and_changes_nothing_else(issuer: Issuer) -> None:
    token = issuer.mint()
    assert issuer.keys.deny("x" * 43)
    assert issuer.verify(token)


def test_the_list_of_denied_keys_is_bounded_and_keeps_the_newest(issuer: Issuer) -> None:
    for number in range(70):
        issuer.keys.deny(f"{number:043d}")
    denied = issuer.keys.jwks().denied
    assert (len(denied), denied[-1]) == (64, f"{69:043d}")


def test_a_cached_token_of_a_denied_key_is_refused_at_the_next_look(issuer: Issuer) -> None:
    keys = KeySet(issuer.keys.jwks())
    verifier, token = TokenVerifier(keys, ISSUER, issuer.clock), issuer.mint()
    verifier.verify(token, "kc:interface")
    issuer.keys.deny(issuer.keys.signing_key()[0])
    keys.update(issuer.keys.jwks())
    with pytest.raises(e.RevokedKeyError):
        verifier.verify(token, "kc:interface")


def test_rotation_under_load_rejects_no_live_token(tmp_path: Path) -> None:
    """T18. Three keys in turn; verifiers as old as they may be; every token tried until its end."""
    issuer = Issuer(tmp_path / "keys")
    issuer.keys = KeyStore(tmp_path / "short", issuer.clock, active_seconds=600)
    issuer.minter._keys = issuer.keys
    live: list[tuple[float, str]] = []
    signers, read_at = set(), float("-inf")
    known = KeySet(issuer.keys.jwks())
    end = issuer.clock.now + 1_900
    while issuer.clock.now < end:
        issuer.keys.tick()
        signers.add(issuer.keys.signing_key()[0])
        if issuer.clock.now - read_at >= VERIFIER_SECONDS:
            known, read_at = KeySet(issuer.keys.jwks()), issuer.clock.now
        live.append((issuer.clock.now + 300, issuer.mint()))
        live = [(until, token) for until, token in live if until > issuer.clock.now]
        for _, token in live:
            TokenVerifier(known, ISSUER, issuer.clock).verify(token, "kc:interface")
        issuer.clock.now += 10
    assert len(signers) >= 3
