"""What bytes from outside may do to the code that reads them: be refused, by an error of ours, or be what they claim.

The first byte says who reads the rest. The key is derived from a constant, so that a finding can be run again.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kuangchao_contracts import errors as e
from kuangchao_contracts import resources
from kuangchao_contracts.claims import Claims
from kuangchao_contracts.gate import authorise
from kuangchao_contracts.keys import public_key
from kuangchao_contracts.policy import BUILT_IN
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.text import recordable
from kuangchao_contracts.wire import CallEnvelope
from kuangchao_operator.gate.server import _envelope
from tests.boundary.authority.vectors import VECTORS
from tests.unit.authority.kit import RESOURCE, Clock, FixedFence, Signer, b64

SIGNER = Signer(Clock())
SIGNER.private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"fuzzing, not a secret").digest())
SIGNER.public = public_key(SIGNER.private.public_key())
HEADER = json.dumps(SIGNER.header()).encode()
AUDIENCE = "kc:state"


def token_as_it_comes(data: bytes) -> None:
    """Accepted only if the very bytes before the last dot were signed."""
    text = data.decode("utf-8", "surrogateescape")
    if accepted(text) is not None:
        signed, _, signature = text.rpartition(".")
        if b64(SIGNER.private.sign(signed.encode("ascii"))) != signature:
            raise AssertionError("accepted what was not signed in this form")


def payload_signed(data: bytes) -> None:
    """Accepted only if it says what the strict reading of its bytes says."""
    claims = accepted(SIGNER.sign(HEADER, data))
    if claims is not None:
        plain = claims.model_dump(mode="json", exclude_unset=True)
        if plain != json.loads(data):
            raise AssertionError("accepted claims differ from the signed ones")


def header_signed(data: bytes) -> None:
    """There is one header that is accepted, whatever its order and spaces."""
    if accepted(SIGNER.sign(data, json.dumps(SIGNER.payload()).encode())) and json.loads(data) != json.loads(HEADER):
        raise AssertionError("accepted another header")


def claims_and_call(data: bytes) -> None:
    """Genuine claims against a call whose operation and resource come from the same bytes."""
    payload, _, rest = data.partition(b"\xff")
    claims = accepted(SIGNER.sign(HEADER, payload), require_usable=False)
    op, _, resource = rest.decode("utf-8", "surrogateescape").partition(" ")
    if claims is None or op not in OPERATIONS:
        return
    try:
        authorise(claims, OPERATIONS[op], resource, FixedFence(), BUILT_IN)
    except e.CapabilityError:
        return
    if resource.split("/")[0] != claims.ns or not BUILT_IN.permits(claims.sub, op):
        raise AssertionError("allowed beyond tenant or policy")


def resource(data: bytes) -> None:
    """Accepted resources are plain: nothing that another reader would take for a path, a pattern or two names."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        segments = resources.parse(text)
    except e.DeniedError:
        return
    if "/".join(segments) != text or not text.isascii() or any(c in text for c in "*%\\ \x00") or ".." in text:
        raise AssertionError("accepted a resource that is not plain")


def body(data: bytes) -> None:
    """The envelope of a call."""
    try:
        envelope = _envelope(data)
    except e.InvalidInputError:
        return
    if not isinstance(envelope, CallEnvelope):
        raise AssertionError("neither refused nor an envelope")  # noqa: TRY004  # a finding, not a caller's mistake


def text_for_a_record(data: bytes) -> None:
    """Whatever a caller sends is one recordable line in a record."""
    text = recordable(data.decode("utf-8", "surrogateescape"), 64)
    if len(text) > 64 or not text.isascii() or not (text.isprintable() or not text):
        raise AssertionError("a record would hold more than one recordable line")


READERS: tuple[Callable[[bytes], None], ...] = (
    token_as_it_comes,
    payload_signed,
    header_signed,
    claims_and_call,
    resource,
    body,
    text_for_a_record,
)


def accepted(token: str, *, require_usable: bool = True) -> Claims | None:
    """The claims of a token that a fresh verifier takes; refusals by any other error than ours are raised."""
    verifier = SIGNER.verifier()
    try:
        return verifier.verify(token, AUDIENCE)[0] if require_usable else verifier.genuine(token)[0]
    except e.CapabilityError:
        return None


def check(data: bytes) -> None:
    """One input. Raises when it did what none may."""
    if data:
        READERS[data[0] % len(READERS)](data[1:])


def seeds() -> Iterator[bytes]:
    """Good inputs and the attack corpus, for each reader."""
    good: dict[str, Any] = SIGNER.payload()
    for token in (SIGNER.token(), *(vector(SIGNER) for _, vector, _ in VECTORS)):
        if len(token) <= 10_000:
            yield b"\x00" + token.encode("utf-8", "surrogatepass")
    for payload in (good, good | {"one": True, "exp": good["iat"] + 60}, good | {"cnf": {"jkt": "x"}, "par": "A" * 22}):
        text = json.dumps(payload).encode()
        yield b"\x01" + text
        yield b"\x03" + text + b"\xffstate.restore_point " + RESOURCE.encode()
    yield b"\x02" + HEADER
    yield from (b"\x04" + text for text in (RESOURCE.encode(), b"_cluster/audit/records", b"a/b/c/d/e/f/g/h"))
    yield b"\x05" + json.dumps({"resource": RESOURCE, "request": {"attempt": 3}}).encode()
    yield b"\x06a\nb\x1b[31m"
