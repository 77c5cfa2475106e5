"""`kuangchao token verify FILE`: judges one token offline, by public keys alone. Never prints the token."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kuangchao_contracts import errors as e
from kuangchao_operator.cli.files import ARGUMENT, read_bytes
from kuangchao_operator.cli.output import REFUSED, Format, Output, emit_json, error_json

if TYPE_CHECKING:
    from kuangchao_contracts.claims import Claims
    from kuangchao_contracts.keys import KeySet

KEY_MEMBERS = ("kty", "crv", "x", "kid", "state", "useUntil")


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The token, and nothing else, not even a newline.")],
    jwks: Annotated[
        Path, typer.Option(metavar="FILE", help="Public keys: jwks.json of the ConfigMap kuangchao-trust.")
    ],
    audience: Annotated[str, typer.Option(help="Whom the token is for: kc:execution, kc:state, ...")],
    issuer: Annotated[str, typer.Option(help="Who must have made it: kuangchao/<cluster name>.")],
    attempt: Annotated[int | None, typer.Option(min=1, help="The current attempt of its job.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """The claims of a good token as JSON; for a bad one the class of its fault on stderr, and exit code 3.

    Looks at form, signature, key, times, audience and issuer, and with --attempt at the attempt. Not at what only the
    gate knows: policy, revocations, use of a one-shot.

    JSON: the claims
    """
    keys = _keys(jwks)
    try:
        claims = judge(_token(file), keys, audience, issuer, attempt)
    except e.CapabilityError as error:
        name = type(error).__name__
        if output is Format.JSON:
            print(json.dumps({"error": {**error_json(error), "class": name}}), file=sys.stderr)
        else:
            print(name, file=sys.stderr)
        raise typer.Exit(REFUSED) from None
    emit_json(claims.wire())


def judge(token: str, keys: KeySet, audience: str, issuer: str, attempt: int | None) -> Claims:
    """The claims of a token that is good now. Raises the CapabilityError that names its fault."""
    from kuangchao_contracts.gate import check_attempt
    from kuangchao_contracts.tokens import TokenVerifier

    claims, _ = TokenVerifier(keys, issuer).verify(token, audience)
    if attempt is not None:
        check_attempt(claims, attempt)
    return claims


def _token(path: Path) -> str:
    raw = read_bytes(ARGUMENT, path)
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError:
        raise e.MalformedTokenError("token is not ASCII") from None


def _keys(path: Path) -> KeySet:
    """Keys of a file: ours, or any JWKS with Ed25519 keys. Raises InvalidInputError."""
    from pydantic import ValidationError

    from kuangchao_contracts.keys import Jwks, KeySet

    try:
        document = json.loads(read_bytes("--jwks", path))
        found = {"keys": [_key(entry) for entry in document["keys"]], "denied": document.get("denied", ())}
        return KeySet(Jwks.model_validate(found))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise e.InvalidInputError("--jwks", str(path), f"{where}: {first['msg']}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise e.InvalidInputError("--jwks", str(path), 'must be {"keys": [...]} with Ed25519 keys') from None


def _key(entry: dict[str, Any]) -> dict[str, Any]:
    """A key with the members that we know. One without a state is in use, one without a kid has its thumbprint."""
    from kuangchao_contracts.keys import thumbprint

    given = {"kid": thumbprint(entry["x"]), "state": "active", **entry}
    return {name: given[name] for name in KEY_MEMBERS if name in given}
