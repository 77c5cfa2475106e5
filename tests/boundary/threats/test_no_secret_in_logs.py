"""T23: everything at DEBUG, good calls and bad ones: no token and no key is in a log, the store or an operation log.

`tests/api/test_no_token_shown.py` does the same with real processes, events and objects.
"""

import base64
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kuangchao_contracts.ports import OPERATIONS
from tests.boundary.authority.holders import HOLDERS, holder_for
from tests.boundary.authority.recorders import Reached
from tests.boundary.authority.vectors import VECTORS
from tests.boundary.authority.world import World, resource_of, running
from tests.unit.authority.kit import RESOURCE, TOKEN, Clock, Signer


def key_forms(world: World) -> Iterator[bytes]:
    """A private key in every way that somebody might write it."""
    key = world.issuer.keys.signing_key()[1]
    raw = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    yield from (raw, raw.hex().encode(), repr(raw)[2:-1].encode(), *pem.splitlines()[1:2])
    yield from (base64.b64encode(raw).rstrip(b"="), base64.urlsafe_b64encode(raw).rstrip(b"="))


def use_everything(world: World) -> list[str]:
    """Every operation by everybody, allowed or not, and the attack corpus; the tokens."""
    tokens = []
    for op in OPERATIONS.values():
        for name in HOLDERS:
            holder = holder_for(op, name)
            token = world.token(op, holder)
            logging.getLogger("kuangchao.test").debug("call of %s by %s", op.name, name)
            world.call(op, token, resource_of(op, holder))
            tokens.append(token)
    signer = Signer(Clock(world.clock.now))
    for _, vector, _ in VECTORS:
        tokens.append(vector(signer))
        world.call(OPERATIONS["state.restore_point"], tokens[-1], RESOURCE)
    return tokens


def found_in(content: bytes, tokens: list[str], keys: list[bytes]) -> list[str]:
    """What of them is there: whole tokens, payloads, signatures, keys."""
    parts = {
        part.encode("utf-8", "surrogatepass") for token in tokens for part in token.split(".")[1:] if len(part) >= 40
    }
    shown = [f"part of a token, {part[:6]!r}..." for part in parts if part in content]
    shown += ["something like a token"] if TOKEN.search(content.decode("latin-1")) else []
    return shown + [f"key, form {number}" for number, key in enumerate(keys) if key in content]


def test_neither_tokens_nor_keys_are_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with running(tmp_path) as world:
        tokens, keys = use_everything(world), list(key_forms(world))
        denials = b"".join(record.canonical() for record in world.log.take_notes())
        assert "execution.launch" in world.reached
    printed = capsys.readouterr()
    places = {"logs": caplog.text.encode(), "printed": f"{printed.out}{printed.err}".encode(), "rank": denials}
    places |= {path.name: path.read_bytes() for path in (tmp_path / "audit").iterdir()}
    assert len(caplog.records) > 100
    assert any(len(content) > 100_000 for name, content in places.items() if name.endswith(".sqlite"))
    assert {name: found_in(content, tokens, keys) for name, content in places.items()} == {name: [] for name in places}


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    with running(tmp_path) as world:
        op = OPERATIONS["state.restore_point"]
        token, keys = world.token(op, HOLDERS["agent"]), list(key_forms(world))
        assert isinstance(world.call(op, token, RESOURCE), Reached)
    assert found_in(f"Bearer {token}".encode(), [token], keys)
    assert found_in(token.split(".")[2].encode(), [token], keys)
    assert all(found_in(b"x" + key + b"x", [token], keys) for key in keys)
    assert found_in(b"nothing", [token], keys) == []
