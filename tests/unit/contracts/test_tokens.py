"""The attack corpus against token verification: each vector has exactly one fault and its own error."""

import contextlib
import hashlib
import hmac
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kuangchao_contracts import errors as e
from kuangchao_contracts import tokens
from kuangchao_contracts.claims import REQUIRED
from kuangchao_contracts.keys import Jwks, KeySet, KeyState, public_key
from kuangchao_contracts.tokens import TokenVerifier, fingerprint
from tests.unit.authority.kit import ISSUER, NS, RESOURCE, Clock, Signer, b64

AUDIENCE = "kc:state"
Vector = Callable[[Signer], str]


@pytest.fixture
def signer() -> Signer:
    return Signer(Clock())


def with_header(**changes: object) -> Vector:
    return lambda s: s.token(header=s.header(**changes))


def with_claims(**changes: object) -> Vector:
    return lambda s: s.token(**changes)


def with_payload_text(old: str, new: str) -> Vector:
    """The good payload with a part of its text replaced, then signed."""

    def make(s: Signer) -> str:
        text = json.dumps(s.payload())
        assert old in text
        return s.sign(json.dumps(s.header()).encode(), text.replace(old, new, 1).encode())

    return make


def at(offset: int, **claims: int) -> Vector:
    """Claims whose values are relative to now."""
    return lambda s: s.token(**{name: int(s.clock()) + offset + value for name, value in claims.items()})


def hmac_with_public_key(s: Signer) -> str:
    secret = s.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    signed = f"{b64(json.dumps(s.header(alg='HS256')).encode())}.{b64(json.dumps(s.payload()).encode())}"
    return f"{signed}.{b64(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


def hmac_with_pem(s: Signer) -> str:
    secret = s.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = f"{b64(json.dumps(s.header(alg='HS256')).encode())}.{b64(json.dumps(s.payload()).encode())}"
    return f"{signed}.{b64(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


def rsa_signed(s: Signer) -> str:
    return jwt.encode(s.payload(), rsa.generate_private_key(65_537, 2_048), "RS256", s.header(alg="RS256"))


def ecdsa_signed(s: Signer) -> str:
    return jwt.encode(s.payload(), ec.generate_private_key(ec.SECP256R1()), "ES256", s.header(alg="ES256"))


def other_key_same_kid(s: Signer) -> str:
    other = Signer(s.clock)
    return other.token(header=s.header())


def payload_byte_changed(s: Signer) -> str:
    header, payload, signature = s.token(att=3).split(".")
    raw = json.dumps(s.payload(att=4)).encode()
    assert b64(raw) != payload
    return f"{header}.{b64(raw)}.{signature}"


def signature_of(length: int) -> Vector:
    return lambda s: ".".join([*s.token().split(".")[:2], b64(bytes(length))])


def segments(count: int) -> Vector:
    return lambda s: ".".join((s.token().split(".") * 2)[:count])


def alg_none(s: Signer) -> str:
    header, payload = b64(json.dumps(s.header(alg="none")).encode()), b64(json.dumps(s.payload()).encode())
    return f"{header}.{payload}."


def noncanonical(s: Signer) -> str:
    """The same signature in a second byte form: the two unused bits of the last character set."""
    return noncanonical_of(s.token())


def noncanonical_of(token: str) -> str:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return token[:-1] + alphabet[alphabet.index(token[-1]) ^ 1]


CORPUS: list[tuple[str, Vector, type[e.CapabilityError]]] = [
    ("1 alg none", alg_none, e.MalformedTokenError),
    ("2 alg None", with_header(alg="None"), e.InvalidAlgorithmError),
    ("2 alg NONE", with_header(alg="NONE"), e.InvalidAlgorithmError),
    ("2 alg eddsa", with_header(alg="eddsa"), e.InvalidAlgorithmError),
    ("3 alg list", with_header(alg=["EdDSA"]), e.InvalidAlgorithmError),
    ("3 alg int", with_header(alg=1), e.InvalidAlgorithmError),
    ("3 alg null", with_header(alg=None), e.InvalidAlgorithmError),
    ("3 alg absent", with_header(alg=...), e.InvalidAlgorithmError),
    ("4 HS256 raw public key", hmac_with_public_key, e.InvalidAlgorithmError),
    ("5 HS256 PEM", hmac_with_pem, e.InvalidAlgorithmError),
    ("6 RS256", rsa_signed, e.InvalidAlgorithmError),
    ("6 ES256", ecdsa_signed, e.InvalidAlgorithmError),
    ("7 alg Ed25519", with_header(alg="Ed25519"), e.InvalidAlgorithmError),
    ("8 other key", other_key_same_kid, e.InvalidSignatureError),
    ("10 payload changed", payload_byte_changed, e.InvalidSignatureError),
    ("11 signature 63 bytes", signature_of(63), e.MalformedTokenError),
    ("11 signature 65 bytes", signature_of(65), e.MalformedTokenError),
    ("11 signature zero", signature_of(64), e.InvalidSignatureError),
    ("12 kid path", with_header(kid="../../dev/null"), e.MalformedKidError),
    ("12 kid proc", with_header(kid="/proc/self/environ"), e.MalformedKidError),
    ("14 kid int", with_header(kid=7), e.MalformedKidError),
    ("14 kid missing", with_header(kid=...), e.MalformedKidError),
    ("14 kid long", with_header(kid="A" * 4_000), e.MalformedKidError),
    ("15 kid unknown", with_header(kid="A" * 43), e.UnknownKeyError),
    ("18 jku", with_header(jku="http://127.0.0.1/keys"), e.UnexpectedHeaderError),
    ("18 x5u", with_header(x5u="file:///etc/passwd"), e.UnexpectedHeaderError),
    ("19 jwk", with_header(jwk={"kty": "OKP"}), e.UnexpectedHeaderError),
    ("19 x5c", with_header(x5c=["AAAA"]), e.UnexpectedHeaderError),
    ("20 crit", with_header(crit=["exp"]), e.UnexpectedHeaderError),
    ("22 zip", with_header(zip="DEF"), e.UnexpectedHeaderError),
    ("23 typ JWT", with_header(typ="JWT"), e.InvalidTypeError),
    ("23 typ at+jwt", with_header(typ="at+jwt"), e.InvalidTypeError),
    ("23 typ absent", with_header(typ=...), e.InvalidTypeError),
    ("25 sub twice", with_payload_text('"sub":', '"sub": "layer:execution", "sub":'), e.DuplicateKeyError),
    ("25 cap twice", with_payload_text('"cap":', '"cap": [], "cap":'), e.DuplicateKeyError),
    ("25 op twice", with_payload_text('"op":', '"op": "x", "op":'), e.DuplicateKeyError),
    ("26 expired", at(-306, iat=0, nbf=0, exp=300), e.ExpiredSignatureError),
    ("27 nbf future", at(60, nbf=0), e.ImmatureSignatureError),
    ("28 iat future", at(60, iat=0, nbf=0, exp=300), e.ImmatureSignatureError),
    ("29 exp string", with_claims(exp="1800000300"), e.InvalidClaimTypeError),
    ("29 exp bool", with_claims(exp=True), e.InvalidClaimTypeError),
    ("29 exp float", with_claims(exp=1_800_000_300.0), e.InvalidClaimTypeError),
    ("29 exp null", with_claims(exp=None), e.InvalidClaimTypeError),
    ("30 exp NaN", with_claims(exp=float("nan")), e.MalformedTokenError),
    ("30 exp Infinity", with_claims(exp=float("inf")), e.MalformedTokenError),
    ("30 exp 1e400", with_payload_text('"exp": 18', '"exp": 1e400, "x": 18'), e.MalformedTokenError),
    ("31 exp 10^20", with_claims(exp=10**20), e.LifetimeExceededError),
    ("31 exp 5000 digits", with_payload_text('"exp": 18', '"exp": ' + "9" * 5_000), e.MalformedTokenError),
    ("32 lifetime 301", at(0, exp=301), e.LifetimeExceededError),
    ("32 one-shot lifetime 61", lambda s: s.token(one=True, exp=int(s.clock()) + 61), e.LifetimeExceededError),
    ("32 lifetime zero", at(0, exp=0), e.LifetimeExceededError),
    ("34 other audience", with_claims(aud="kc:execution"), e.InvalidAudienceError),
    ("35 audience list", with_claims(aud=["kc:state"]), e.InvalidAudienceError),
    ("37 issuer wrong", with_claims(iss="kuangchao/other"), e.InvalidIssuerError),
    ("37 issuer prefix", with_claims(iss=ISSUER[:-1]), e.InvalidIssuerError),
    ("37 issuer list", with_claims(iss=[ISSUER]), e.InvalidIssuerError),
    ("38 unknown claim", with_claims(admin=True), e.UnexpectedClaimError),
    ("40 jti int", with_claims(jti=1), e.InvalidJTIError),
    ("40 jti empty", with_claims(jti=""), e.InvalidJTIError),
    ("40 jti 23", with_claims(jti="A" * 23), e.InvalidJTIError),
    ("44 att zero", with_claims(att=0), e.InvalidClaimTypeError),
    ("44 att negative", with_claims(att=-1), e.InvalidClaimTypeError),
    ("44 att string", with_claims(att="3"), e.InvalidClaimTypeError),
    ("47 token 8193", with_claims(sub="a" * 9_000), e.TokenTooLargeError),
    ("47 token 1 MB", lambda _: "A" * 1_000_000, e.TokenTooLargeError),
    ("50 two segments", segments(2), e.MalformedTokenError),
    ("50 four segments", segments(4), e.MalformedTokenError),
    ("50 five segments", segments(5), e.MalformedTokenError),
    ("50 JSON form", lambda s: json.dumps({"payload": s.token()}), e.MalformedTokenError),
    ("50 empty", lambda _: "", e.MalformedTokenError),
    ("50 dots", lambda _: "..", e.MalformedTokenError),
    ("51 leading space", lambda s: " " + s.token(), e.MalformedTokenError),
    ("51 trailing newline", lambda s: s.token() + "\n", e.MalformedTokenError),
    ("51 Bearer", lambda s: "Bearer " + s.token(), e.MalformedTokenError),
    ("51 padding", lambda s: s.token() + "==", e.MalformedTokenError),
    ("51 second byte form", noncanonical, e.MalformedTokenError),
    ("53 full-width slash", with_claims(cap=[{"op": "state.save", "res": "team-a／jobs/x"}]), e.InvalidResourceError),
    ("53 Cyrillic", with_claims(cap=[{"op": "state.save", "res": "te\u0430m-a/jobs/x"}]), e.InvalidResourceError),
    ("53 zero width", with_claims(cap=[{"op": "state.save", "res": "team\u200d-a/jobs/x"}]), e.InvalidResourceError),
    ("53 NFD", with_claims(cap=[{"op": "state.save", "res": "tea\u0301m/jobs/x"}]), e.InvalidResourceError),
    ("54 dot dot", with_claims(cap=[{"op": "state.save", "res": "team-a/../team-b"}]), e.InvalidResourceError),
    ("54 empty segment", with_claims(cap=[{"op": "state.save", "res": "team-a//x"}]), e.InvalidResourceError),
    ("54 percent", with_claims(cap=[{"op": "state.save", "res": "team-a/%2e%2e/x"}]), e.InvalidResourceError),
    ("54 trailing slash", with_claims(cap=[{"op": "state.save", "res": RESOURCE + "/"}]), e.InvalidResourceError),
    ("55 star", with_claims(cap=[{"op": "state.save", "res": "*"}]), e.WildcardForbiddenError),
    ("55 star ns", with_claims(cap=[{"op": "state.save", "res": "*/checkpoints/x"}]), e.WildcardForbiddenError),
    ("55 double star", with_claims(cap=[{"op": "state.save", "res": f"{NS}/**"}]), e.WildcardForbiddenError),
    ("55 partial star", with_claims(cap=[{"op": "state.save", "res": "team-*"}]), e.WildcardForbiddenError),
    ("56 op star", with_claims(cap=[{"op": "*", "res": RESOURCE}]), e.UnknownOperationError),
    ("56 op star of a layer", with_claims(cap=[{"op": "state.*", "res": RESOURCE}]), e.UnknownOperationError),
    ("cap empty", with_claims(cap=[]), e.InvalidClaimTypeError),
    ("cap of 17", with_claims(cap=[{"op": "state.save", "res": RESOURCE}] * 17), e.InvalidClaimTypeError),
    ("worker without pod", with_claims(pod=...), e.MissingRequiredClaimError),
    ("worker without ranks", with_claims(ranks=...), e.MissingRequiredClaimError),
    ("worker with rank and ranks", with_claims(rank=0), e.MissingRequiredClaimError),
    ("NUL in sub", with_claims(sub="agent:\x00"), e.MalformedTokenError),
    ("lone surrogate in sub", with_payload_text('"sub": "', '"sub": "\\ud800'), e.MalformedTokenError),
    ("UTF-16", lambda s: s.sign(json.dumps(s.header()).encode(), json.dumps(s.payload()).encode("utf-16")),
     e.MalformedTokenError),
    ("BOM", lambda s: s.sign(json.dumps(s.header()).encode(), b"\xef\xbb\xbf" + json.dumps(s.payload()).encode()),
     e.MalformedTokenError),
    ("payload list", lambda s: s.sign(json.dumps(s.header()).encode(), b"[]"), e.MalformedTokenError),
    ("deep", lambda s: s.sign(json.dumps(s.header()).encode(), b'{"a":' * 7 + b"1" + b"}" * 7), e.MalformedTokenError),
    ("very deep", lambda s: s.sign(json.dumps(s.header()).encode(), b"[" * 2_900 + b"]" * 2_900),
     e.MalformedTokenError),
]  # fmt: skip


@pytest.mark.parametrize(("vector", "expected"), [(v, x) for _, v, x in CORPUS], ids=[name for name, _, _ in CORPUS])
def test_attack_is_refused_with_its_own_error(
    signer: Signer, vector: Vector, expected: type[e.CapabilityError]
) -> None:
    token = vector(signer)
    with pytest.raises(e.CapabilityError) as caught:
        signer.verifier().verify(token, AUDIENCE)
    assert type(caught.value) is expected
    assert token == "" or token not in str(caught.value)


@pytest.mark.parametrize("claim", REQUIRED)
def test_each_required_claim_is_missed(signer: Signer, claim: str) -> None:
    with pytest.raises(e.MissingRequiredClaimError, match=claim):
        signer.verifier().verify(signer.token(**{claim: ...}), AUDIENCE)


def test_good_tokens_pass(signer: Signer) -> None:
    claims, kid = signer.verifier().verify(signer.token(), AUDIENCE)
    assert (claims.job, claims.att, kid) == ("digits", 3, signer.public.kid)
    single, _ = signer.verifier().verify(signer.token(rank=5, ranks=...), AUDIENCE)
    assert single.holds_ranks([5])
    assert not single.holds_ranks([4])


@pytest.mark.parametrize(("offset", "good"), [(-304, True), (-305, False), (5, True), (6, False)])
def test_leeway_is_five_seconds_on_both_sides(signer: Signer, offset: int, good: bool) -> None:
    token = at(offset, iat=0, nbf=0, exp=300)(signer)
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
        decode = jwt.decode
        monkeypatch.setattr(jwt, "decode", lambda token, *a, **k: seen.append(token) or decode(token, *a, **k))
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
        lease, brief = signer.token(), at(0, iat=0, exp=30)(signer)
        for seconds, expected in ((0, [lease, brief]), (30, [brief]), (29, [brief]), (1, [lease, brief])):
            signer.clock.now += seconds
            checks.clear()
            for token in (lease, brief):
                with contextlib.suppress(e.ExpiredSignatureError):
                    verifier.verify(token, AUDIENCE)
            assert checks == expected

    def test_a_forged_token_is_checked_once_a_second(self, signer: Signer, checks: list[str]) -> None:
        verifier, forged = signer.verifier(), other_key_same_kid(signer)
        for seconds in (0, 0.5, 0.5, 0.5):
            signer.clock.now += seconds
            with pytest.raises(e.InvalidSignatureError):
                verifier.verify(forged, AUDIENCE)
        assert checks == [forged, forged]

    def test_a_thousand_forged_tokens_are_remembered_and_no_more(
        self, signer: Signer, checks: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tokens, "FORGED_ENTRIES", 3)
        verifier = signer.verifier()
        forged = [other_key_same_kid(signer) for _ in range(4)]
        for token in (*forged, forged[3], forged[0]):
            with pytest.raises(e.InvalidSignatureError):
                verifier.verify(token, AUDIENCE)
        assert checks == [*forged, forged[0]]

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
        assert not verifier.recognises(noncanonical_of(token))
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
