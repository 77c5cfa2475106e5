"""Verification of tokens: what is good, for how long, and what a verifier remembers. Attacks: tests/boundary."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm

from kuangchao_contracts import errors as e
from kuangchao_contracts import tokens
from kuangchao_contracts.keys import Jwks, KeySet, KeyState, b64url, public_key
from kuangchao_contracts.tokens import TokenVerifier, fingerprint
from tests.unit.authority.kit import ISSUER, Clock, Signer

AUDIENCE = "kc:state"


@pytest.fixture
def signer() -> Signer:
    return Signer(Clock())


def at(signer: Signer, offset: int, **claims: int) -> str:
    """A token with claims whose values are relative to now."""
    return signer.token(**{name: int(signer.clock()) + offset + value for name, value in claims.items()})


def forged(signer: Signer) -> str:
    """By another key under the kid of the right one."""
    return Signer(signer.clock).token(header=signer.header())


def second_form(token: str) -> str:
    """The same signature in other bytes: the two unused bits of the last character set."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return token[:-1] + alphabet[alphabet.index(token[-1]) ^ 1]


def test_good_tokens_pass(signer: Signer) -> None:
    claims, kid = signer.verifier().verify(signer.token(), AUDIENCE)
    assert (claims.job, claims.att, kid) == ("digits", 3, signer.public.kid)
    single, _ = signer.verifier().verify(signer.token(rank=5, ranks=...), AUDIENCE)
    assert single.holds_ranks([5])
    assert not single.holds_ranks([4])


@pytest.mark.parametrize(("offset", "good"), [(-304, True), (-305, False), (5, True), (6, False)])
def test_leeway_is_five_seconds_on_both_sides(signer: Signer, offset: int, good: bool) -> None:
    token = at(signer, offset, iat=0, nbf=0, exp=300)
    if good:
        signer.verifier().verify(token, AUDIENCE)
    else:
        with pytest.raises((e.ExpiredSignatureError, e.ImmatureSignatureError)):
            signer.verifier().verify(token, AUDIENCE)


def test_key_states(signer: Signer) -> None:
    token = signer.token()
    verify = lambda keys: TokenVerifier(keys, ISSUER, signer.clock).verify(token, AUDIENCE)  # noqa: E731
    verify(signer.key_set(KeyState.PRE_ACTIVE))
    verify(signer.key_set(KeyState.RETIRING, int(signer.clock()) + 1))
    with pytest.raises(e.RetiredKeyError):
        verify(signer.key_set(KeyState.RETIRING, int(signer.clock())))
    with pytest.raises(e.RetiredKeyError):
        verify(signer.key_set(KeyState.GONE))
    with pytest.raises(e.RevokedKeyError):
        verify(signer.key_set(denied=True))


def test_key_set_refuses_a_kid_that_is_not_its_keys_thumbprint(signer: Signer) -> None:
    other = public_key(Ed25519PrivateKey.generate().public_key())
    keys = signer.key_set()
    with pytest.raises(ValueError, match="thumbprint"):
        keys.update(Jwks(keys=(other.replace(kid=signer.public.kid),)))
    assert keys.lookup(signer.public.kid, 0)


class TestCache:
    """A hit saves the signature check and nothing else."""

    @pytest.fixture
    def checks(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Every token whose signature is checked, in order."""
        seen: list[str] = []
        verify = OKPAlgorithm.verify

        def noted(self: OKPAlgorithm, signed: bytes, key: Any, signature: bytes) -> bool:
            seen.append(f"{signed.decode()}.{b64url(signature)}")
            return verify(self, signed, key, signature)

        monkeypatch.setattr(OKPAlgorithm, "verify", noted)
        return seen

    def test_hit_needs_no_key_operation(self, signer: Signer, checks: list[str]) -> None:
        verifier, token = signer.verifier(), signer.token()
        assert verifier.verify(token, AUDIENCE)[0] is verifier.verify(token, AUDIENCE)[0]
        assert checks == [token]

    def test_hit_checks_the_beginning(self, signer: Signer) -> None:
        verifier, token = signer.verifier(), signer.token()
        verifier.verify(token, AUDIENCE)
        signer.clock.now -= 6
        with pytest.raises(e.ImmatureSignatureError):
            verifier.verify(token, AUDIENCE)

    def test_hit_checks_expiry(self, signer: Signer) -> None:
        verifier, token = signer.verifier(), signer.token()
        verifier.verify(token, AUDIENCE)
        signer.clock.now += 305
        with pytest.raises(e.ExpiredSignatureError):
            verifier.verify(token, AUDIENCE)

    def test_hit_checks_audience(self, signer: Signer) -> None:
        verifier, token = signer.verifier(), signer.token()
        verifier.verify(token, AUDIENCE)
        with pytest.raises(e.InvalidAudienceError):
            verifier.verify(token, "kc:execution")

    def test_hit_checks_key(self, signer: Signer) -> None:
        keys = signer.key_set()
        verifier, token = TokenVerifier(keys, ISSUER, signer.clock), signer.token()
        verifier.verify(token, AUDIENCE)
        keys.update(Jwks(keys=(signer.public,), denied=(signer.public.kid,)))
        with pytest.raises(e.RevokedKeyError):
            verifier.verify(token, AUDIENCE)
        keys.update(Jwks(keys=()))
        with pytest.raises(e.UnknownKeyError):
            verifier.verify(token, AUDIENCE)

    def test_one_shots_are_checked_every_time(self, signer: Signer, checks: list[str]) -> None:
        verifier, token = signer.verifier(), signer.token(one=True, exp=int(signer.clock()) + 60)
        for _ in range(2):
            verifier.verify(token, AUDIENCE)
        assert checks == [token, token]

    def test_those_used_last_stay(self, signer: Signer, checks: list[str]) -> None:
        verifier = signer.verifier(cache_size=2)
        busy, idle, new = (signer.token() for _ in range(3))
        for token in (busy, idle, busy, new, busy, idle):
            verifier.verify(token, AUDIENCE)
        assert checks == [busy, idle, new, idle]

    def test_a_minute_at_most_and_never_beyond_the_end(self, signer: Signer, checks: list[str]) -> None:
        verifier = signer.verifier()
        lease, brief = signer.token(), at(signer, 0, iat=0, exp=30)
        for seconds, expected in ((0, [lease, brief]), (30, [brief]), (29, [brief]), (1, [lease, brief])):
            signer.clock.now += seconds
            checks.clear()
            for token in (lease, brief):
                with contextlib.suppress(e.ExpiredSignatureError):
                    verifier.verify(token, AUDIENCE)
            assert checks == expected

    def test_a_forged_token_is_checked_once_a_second(self, signer: Signer, checks: list[str]) -> None:
        verifier, token = signer.verifier(), forged(signer)
        for seconds in (0, 0.5, 0.5, 0.5):
            signer.clock.now += seconds
            with pytest.raises(e.InvalidSignatureError):
                verifier.verify(token, AUDIENCE)
        assert checks == [token, token]

    def test_a_thousand_forged_tokens_are_remembered_and_no_more(
        self, signer: Signer, checks: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tokens, "FORGED_ENTRIES", 3)
        verifier = signer.verifier()
        flood = [forged(signer) for _ in range(4)]
        for token in (*flood, flood[3], flood[0]):
            with pytest.raises(e.InvalidSignatureError):
                verifier.verify(token, AUDIENCE)
        assert checks == [*flood, flood[0]]

    def test_other_failures_are_not_remembered(self, signer: Signer) -> None:
        keys = KeySet(Jwks(keys=()))
        verifier, token = TokenVerifier(keys, ISSUER, signer.clock), signer.token()
        with pytest.raises(e.UnknownKeyError):
            verifier.verify(token, AUDIENCE)
        keys.update(Jwks(keys=(signer.public,)))
        assert verifier.verify(token, AUDIENCE)

    def test_recognises_what_it_verified_and_nothing_else(self, signer: Signer) -> None:
        verifier, token = signer.verifier(), signer.token()
        assert not verifier.recognises(token)
        verifier.verify(token, AUDIENCE)
        assert verifier.recognises(token)
        assert not verifier.recognises(second_form(token))
        assert not verifier.recognises("A" * 1_000_000)
        signer.clock.now += 61
        assert not verifier.recognises(token)

    def test_many_threads(self, signer: Signer) -> None:
        verifier = signer.verifier(cache_size=4)
        leases = [signer.token() for _ in range(16)]
        with ThreadPoolExecutor(8) as pool:
            subjects = list(pool.map(lambda n: verifier.verify(leases[n % 16], AUDIENCE)[0].sub, range(400)))
        assert len(subjects) == 400


class TestUnknownKeys:
    """However many made-up keys are asked for, the set is read again at most once in ten seconds."""

    def test_a_flood_of_a_thousand(self, signer: Signer) -> None:
        told: list[float] = []
        keys = KeySet(Jwks(keys=(signer.public,)), lambda: told.append(signer.clock()))
        verifier = TokenVerifier(keys, ISSUER, signer.clock)
        start = signer.clock()
        for number in range(1_000):
            signer.clock.now = start + number / 50  # 20 s
            with pytest.raises(e.UnknownKeyError):
                verifier.verify(signer.token(header=signer.header(kid=f"{number:043d}")), AUDIENCE)
        assert told == [start, start + 10]

    def test_known_keys_and_denied_ones_ask_for_nothing(self, signer: Signer) -> None:
        keys = KeySet(Jwks(keys=(signer.public,), denied=("A" * 43,)), lambda: pytest.fail("read again"))
        verifier = TokenVerifier(keys, ISSUER, signer.clock)
        verifier.verify(signer.token(), AUDIENCE)
        with pytest.raises(e.RevokedKeyError):
            verifier.verify(signer.token(header=signer.header(kid="A" * 43)), AUDIENCE)

    def test_a_clock_that_jumps_back_does_not_silence_it(self, signer: Signer) -> None:
        told: list[float] = []
        keys = KeySet(Jwks(keys=()), lambda: told.append(signer.clock()))
        for now in (1_000.0, 10.0):
            signer.clock.now = now
            with pytest.raises(e.UnknownKeyError):
                keys.lookup("A" * 43, now)
        assert told == [1_000.0, 10.0]


def test_fingerprint_tells_tokens_apart_and_hides_them(signer: Signer) -> None:
    token, salt = signer.token(), b"s" * 16
    assert fingerprint(token, salt) == fingerprint(token, salt)
    assert len({fingerprint(token, salt), fingerprint(signer.token(), salt), fingerprint(token, b"t")}) == 3
    assert fingerprint(token, salt) not in token
