"""Signed notes: one form, checked by public keys, and any other byte is refused."""

import base64
import hashlib
from datetime import date

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts import notes
from kuangchao_contracts.notes import AuditKeys, BadNoteError, Checkpoint

ISSUER, TIME = "kuangchao/test", 1_800_000_000
KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
CHECKPOINT = Checkpoint(issuer=ISSUER, day=date(2027, 1, 15), size=20, root="5d" * 32, time=TIME)
NOTE = notes.sign(CHECKPOINT, KEY)
KEYS = AuditKeys(issuer=ISSUER, keys=(notes.audit_key(KEY, TIME),))
TEXT, SIGNATURE = NOTE.split("\n\n")


def test_form() -> None:
    lines = NOTE.split("\n")
    name, signature = lines[5].removeprefix("— ").split(" ")
    assert lines[:5] == [name, "20", base64.b64encode(bytes.fromhex("5d" * 32)).decode(), f"time {TIME}", ""]
    assert name == "kuangchao/test/audit/2027-01-15"
    raw = KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    decoded = base64.b64decode(signature)
    assert decoded[:4] == hashlib.sha256(name.encode() + b"\n\x01" + raw).digest()[:4]
    KEY.public_key().verify(decoded[4:], (TEXT + "\n").encode())
    assert (lines[6:], notes.check(NOTE, KEYS), notes.parse(NOTE)) == ([""], CHECKPOINT, CHECKPOINT)


@given(st.integers(0, len(NOTE) - 1), st.characters(codec="utf-8"))
def test_no_other_character_anywhere(place: int, character: str) -> None:
    changed = NOTE[:place] + character + NOTE[place + 1 :]
    if changed != NOTE:
        with pytest.raises(BadNoteError):
            notes.check(changed, KEYS)


BAD = {
    "empty": "",
    "without signature": TEXT + "\n\n",
    "two signatures": NOTE + SIGNATURE,
    "text after it": NOTE + "\n",
    "Windows lines": NOTE.replace("\n", "\r\n"),
    "another extension": NOTE.replace("\n\n", "\nextra\n\n"),
    "no time": NOTE.replace(f"time {TIME}\n", ""),
    "size with a zero before it": NOTE.replace("\n20\n", "\n020\n"),
    "size zero": NOTE.replace("\n20\n", "\n0\n"),
    "size beyond 63 bits": NOTE.replace("\n20\n", "\n9999999999999999999\n"),
    "no such day": NOTE.replace("2027-01-15", "2027-02-30"),
    "digits of another script": NOTE.replace("\n20\n", "\n٢٠\n"),
    "key named otherwise": NOTE.replace("— kuangchao/test", "— kuangchao/prod"),
    "spare bits of the root": NOTE.replace("V0=\n", "V1=\n"),
    "huge": NOTE.replace("kuangchao/test", "kuangchao/" + "t" * 5_000),
}


@pytest.mark.parametrize("note", BAD.values(), ids=BAD)
def test_malformed(note: str) -> None:
    assert note != NOTE
    with pytest.raises(BadNoteError, match=r"not a note|out of its range|one form"):
        notes.check(note, KEYS)


@pytest.mark.parametrize(
    ("note", "keys", "why"),
    [
        (notes.sign(CHECKPOINT, OTHER), KEYS, "no known key"),
        (NOTE, KEYS.replace(issuer="kuangchao/prod"), "is expected"),
        (NOTE, KEYS.replace(keys=(notes.audit_key(KEY, TIME + 601),)), "not in use at"),
        (NOTE, KEYS.replace(keys=(notes.audit_key(KEY, 1).replace(retired=TIME),)), "not in use at"),
        (TEXT.replace("\n20\n", "\n21\n") + "\n\n" + SIGNATURE, KEYS, "no known key"),
    ],
    ids=["other key", "other installation", "before its key", "after its key", "other text, old signature"],
)
def test_not_signed_by_whom_it_must(note: str, keys: AuditKeys, why: str) -> None:
    with pytest.raises(BadNoteError, match=why):
        notes.check(note, keys)


def test_the_key_of_the_time_counts() -> None:
    rotated = AuditKeys(
        issuer=ISSUER, keys=(notes.audit_key(KEY, 1).replace(retired=TIME + 1), notes.audit_key(OTHER, TIME + 1))
    )
    assert notes.check(NOTE, rotated) == CHECKPOINT
    later = CHECKPOINT.replace(time=TIME + 1)
    assert notes.check(notes.sign(later, OTHER), rotated) == later
    with pytest.raises(BadNoteError, match="not in use"):
        notes.check(notes.sign(later, KEY), rotated)


def test_several_notes_in_one_file() -> None:
    assert list(notes.parse_all(NOTE * 3)) == [NOTE] * 3
    with pytest.raises(BadNoteError):
        list(notes.parse_all(NOTE + TEXT))
