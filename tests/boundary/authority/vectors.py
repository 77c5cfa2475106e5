"""Row by row, tokens that attack the verifier: each is right but for one thing, and signed with the right key unless
it says otherwise. Numbers are those of the corpus in the security research that the design follows.
"""

import hashlib
import hmac
import json
from collections.abc import Callable

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kuangchao_contracts import errors as e
from kuangchao_contracts.claims import REQUIRED
from tests.unit.authority.kit import ISSUER, NS, RESOURCE, Signer, b64

Vector = Callable[[Signer], str]


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


def raw(s: Signer) -> bytes:
    return s.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def pem(s: Signer) -> bytes:
    return s.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def ssh(s: Signer) -> bytes:
    return s.private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def jwk(s: Signer) -> bytes:
    return json.dumps({"kty": "OKP", "crv": "Ed25519", "x": s.public.x}).encode()


def hmac_with(secret: Callable[[Signer], bytes]) -> Vector:
    """A forgery that only needs the public key, for whoever takes its text for a secret."""

    def make(s: Signer) -> str:
        signed = f"{b64(json.dumps(s.header(alg='HS256')).encode())}.{b64(json.dumps(s.payload()).encode())}"
        return f"{signed}.{b64(hmac.new(secret(s), signed.encode(), hashlib.sha256).digest())}"

    return make


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


VECTORS: list[tuple[str, Vector, type[e.CapabilityError]]] = [
    ("1 alg none", alg_none, e.MalformedTokenError),
    ("2 alg None", with_header(alg="None"), e.InvalidAlgorithmError),
    ("2 alg NONE", with_header(alg="NONE"), e.InvalidAlgorithmError),
    ("2 alg eddsa", with_header(alg="eddsa"), e.InvalidAlgorithmError),
    ("3 alg list", with_header(alg=["EdDSA"]), e.InvalidAlgorithmError),
    ("3 alg int", with_header(alg=1), e.InvalidAlgorithmError),
    ("3 alg null", with_header(alg=None), e.InvalidAlgorithmError),
    ("3 alg absent", with_header(alg=...), e.InvalidAlgorithmError),
    ("4 HS256 raw public key", hmac_with(raw), e.InvalidAlgorithmError),
    ("5 HS256 PEM", hmac_with(pem), e.InvalidAlgorithmError),
    ("5 HS256 SSH", hmac_with(ssh), e.InvalidAlgorithmError),
    ("5 HS256 JWK", hmac_with(jwk), e.InvalidAlgorithmError),
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
    ("14 kid null", with_header(kid=None), e.MalformedKidError),
    ("14 kid 44", with_header(kid="A" * 44), e.MalformedKidError),
    ("14 kid 10 KB", with_header(kid="A" * 10_000), e.TokenTooLargeError),
    ("14 kid long", with_header(kid="A" * 4_000), e.MalformedKidError),
    ("15 kid unknown", with_header(kid="A" * 43), e.UnknownKeyError),
    ("18 jku", with_header(jku="http://127.0.0.1/keys"), e.UnexpectedHeaderError),
    ("18 jku of the cloud", with_header(jku="http://169.254.169.254/latest/meta-data"), e.UnexpectedHeaderError),
    ("18 jku file", with_header(jku="file:///etc/passwd"), e.UnexpectedHeaderError),
    ("18 x5u", with_header(x5u="http://127.0.0.1/chain.pem"), e.UnexpectedHeaderError),
    ("18 x5u file", with_header(x5u="file:///etc/passwd"), e.UnexpectedHeaderError),
    ("19 jwk", with_header(jwk={"kty": "OKP"}), e.UnexpectedHeaderError),
    ("19 x5c", with_header(x5c=["AAAA"]), e.UnexpectedHeaderError),
    ("20 crit twice", with_header(crit=["exp", "exp"]), e.UnexpectedHeaderError),
    ("20 b64", with_header(b64=False), e.UnexpectedHeaderError),
    ("20 cty", with_header(cty="JWT"), e.UnexpectedHeaderError),
    ("20 crit", with_header(crit=["exp"]), e.UnexpectedHeaderError),
    ("22 zip", with_header(zip="DEF"), e.UnexpectedHeaderError),
    ("23 typ JWT", with_header(typ="JWT"), e.InvalidTypeError),
    ("23 typ at+jwt", with_header(typ="at+jwt"), e.InvalidTypeError),
    ("23 typ absent", with_header(typ=...), e.InvalidTypeError),
    ("25 alg twice", lambda s: s.sign(b'{"alg":"none",' + json.dumps(s.header()).encode()[1:],
     json.dumps(s.payload()).encode()), e.DuplicateKeyError),
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
    ("33 payload empty", lambda s: s.sign(json.dumps(s.header()).encode(), b"{}"), e.MissingRequiredClaimError),
    ("34 other audience", with_claims(aud="kc:execution"), e.InvalidAudienceError),
    ("35 audience list", with_claims(aud=["kc:state"]), e.InvalidAudienceError),
    ("35 audience longer", with_claims(aud="kc:state2"), e.InvalidAudienceError),
    ("35 audience other case", with_claims(aud="KC:state"), e.InvalidAudienceError),
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
    ("50 one segment", segments(1), e.MalformedTokenError),
    ("50 JWE form", lambda s: "." .join([b64(b'{"alg":"dir","enc":"A256GCM"}'), "", b64(bytes(12)), b64(bytes(64)),
     b64(bytes(16))]), e.MalformedTokenError),
    ("50 two segments", segments(2), e.MalformedTokenError),
    ("50 four segments", segments(4), e.MalformedTokenError),
    ("50 five segments", segments(5), e.MalformedTokenError),
    ("50 JSON form", lambda s: json.dumps({"payload": s.token()}), e.MalformedTokenError),
    ("50 empty", lambda _: "", e.MalformedTokenError),
    ("50 dots", lambda _: "..", e.MalformedTokenError),
    ("51 tab inside", lambda s: s.token().replace(".", ".\t", 1), e.MalformedTokenError),
    ("51 NUL at the end", lambda s: s.token() + "\x00", e.MalformedTokenError),
    ("51 standard base64", lambda s: s.token() + "+/", e.MalformedTokenError),
    ("51 lone surrogate", lambda s: s.token() + "\ud800", e.MalformedTokenError),
    ("51 full-width letters", lambda s: s.token().replace("e", "\uff45", 1), e.MalformedTokenError),
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
VECTORS += [(f"33 no {claim}", with_claims(**{claim: ...}), e.MissingRequiredClaimError) for claim in REQUIRED]
