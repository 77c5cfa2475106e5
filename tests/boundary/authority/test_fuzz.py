"""What comes from outside is refused by an error of ours, or is exactly what was signed. `make fuzz` looks longer."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kuangchao_contracts import errors as e
from kuangchao_contracts.tokens import MAX_TOKEN_BYTES, parse_strict
from tests.fuzz.target import AUDIENCE, HEADER, READERS, SIGNER, accepted, check, seeds
from tests.unit.authority.kit import b64

GOOD = SIGNER.token()
CHARACTERS = st.sampled_from('ABCDEFabcdef0123456789-_.=+/ \n\x00\u00e9\uff45\ud800{}"')
PLACES = st.integers(0, len(GOOD) - 1)
many = settings(max_examples=200, deadline=None)


def test_the_good_token_is_good() -> None:
    assert accepted(GOOD)


@pytest.mark.parametrize("place", range(0, len(GOOD), 7))
def test_no_other_character_anywhere(place: int) -> None:
    other = "A" if GOOD[place] != "A" else "B"
    assert accepted(GOOD[:place] + other + GOOD[place + 1 :]) is None


@many
@given(st.lists(st.tuples(PLACES, st.sampled_from(["put", "set", "cut"]), CHARACTERS), min_size=1, max_size=4))
def test_changed_characters(changes: list[tuple[int, str, str]]) -> None:
    text = GOOD
    for place, what, character in changes:
        after = place if what == "put" else place + 1
        text = text[:place] + ("" if what == "cut" else character) + text[after:]
    assert (accepted(text) is not None) == (text == GOOD)


@many
@given(PLACES, PLACES, PLACES)
def test_moved_and_repeated_parts(start: int, end: int, to: int) -> None:
    part = GOOD[min(start, end) : max(start, end)]
    for text in (GOOD[:to] + part + GOOD[to:], part, GOOD.replace(part, "", 1) if part else ""):
        assert (accepted(text) is not None) == (text == GOOD)


@given(st.permutations(GOOD.split(".") * 2), st.integers(0, 6))
def test_other_segments(parts: list[str], count: int) -> None:
    text = ".".join(parts[:count])
    assert (accepted(text) is not None) == (text == GOOD)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
CLAIM = st.sampled_from([*SIGNER.payload(), "par", "cnf", "rank", "puid", "admin"])


@many
@given(st.dictionaries(CLAIM, JSON, min_size=1, max_size=3))
def test_any_value_of_any_claim(changes: dict[str, Any]) -> None:
    payload = json.dumps(SIGNER.payload() | changes).encode()
    READERS[1](payload)


@many
@given(st.sampled_from(["alg", "typ", "kid", "crit", "jku", "b64"]), JSON)
def test_any_value_of_any_header(name: str, value: Any) -> None:
    READERS[2](json.dumps(SIGNER.header() | {name: value}).encode())


@many
@given(st.binary(max_size=300))
@example(b"\x00")
def test_any_bytes(data: bytes) -> None:
    for reader in range(len(READERS)):
        check(bytes([reader]) + data)


def test_the_seeds_of_the_fuzzer() -> None:
    for seed in seeds():
        check(seed)


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "deep lists": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "deep objects": lambda size: b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
    "many members": lambda size: b"{" + b",".join(b'"%d":0' % n for n in range(size // 8)) + b"}",
    "one member again and again": lambda size: b"{" + b",".join([b'"a":0'] * (size // 6)) + b"}",
    "many numbers": lambda size: b'{"a":[' + b",".join([b"1e9"] * (size // 4)) + b"]}",
    "one long number": lambda size: b'{"a":' + b"9" * size + b"}",
    "one long fraction": lambda size: b'{"a":0.' + b"9" * size + b"}",
    "many escapes": lambda size: b'{"a":"' + b"\\ud800" * (size // 6) + b'"}',
    "one long string": lambda size: b'{"a":"' + b"x" * size + b'"}',
    "spaces": lambda size: b" " * size + b"{}",
}


def effort(token: str) -> int:
    """Calls of functions, of Python and C, until the token is refused: a measure that no other process disturbs."""
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        with pytest.raises(e.CapabilityError):
            SIGNER.verifier().verify(token, AUDIENCE)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("shape", HOSTILE.values(), ids=HOSTILE)
def test_effort_grows_no_faster_than_size(shape: Callable[[int], bytes]) -> None:
    small, large = (effort(SIGNER.sign(HEADER, shape(size))) for size in (1_400, 2_800))
    assert large <= 2.2 * small + 100


@pytest.mark.parametrize("length", [MAX_TOKEN_BYTES + 1, 100_000, 10_000_000])
def test_what_is_too_large_costs_nothing(length: int) -> None:
    effort("a")  # what is done but once in a process is not the length's fault
    assert effort("a" * length) <= effort("a" * (MAX_TOKEN_BYTES + 1))
    with pytest.raises(e.TokenTooLargeError):
        parse_strict(b64(HEADER) + "." + "A" * length)
