"""The interfaces of this code as plain data: every operation, every model that crosses a boundary, every kind.

Reads the declarations that gate, policy and CRDs read (`OPERATIONS`, `Contract`, the kinds); there is no second list
that could grow old. Must never hold descriptions or anything that changes without the interface changing.
"""

import importlib
import json
import pkgutil
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from hack.interfaces.schema import REFERENCE
from pydantic.json_schema import models_json_schema

import kuangchao_contracts
from kuangchao_contracts.api.meta import Column, CustomObject
from kuangchao_contracts.audit import StoredRecord
from kuangchao_contracts.base import Contract
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.checkpoint import CheckpointManifest
from kuangchao_contracts.claims import Claims
from kuangchao_contracts.keys import Jwks
from kuangchao_contracts.minting import (
    CaBundle,
    CertificateReply,
    CertificateRequest,
    MintBatch,
    MintReply,
)
from kuangchao_contracts.names import API_VERSION
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.ports.base import Operation
from kuangchao_contracts.wire import CallEnvelope, ErrorReply, TokenBundle
from kuangchao_operator.api.crdgen import KINDS, kind_of, root_schema

Snapshot = dict[str, Any]


class Role(StrEnum):
    """Who writes a document and who reads it, when the two may be of different releases."""

    REQUEST = "request"
    """An older caller to a newer server. Unknown members are refused."""
    REPLY = "reply"
    """A newer server to an older caller, who ignores what it does not know."""
    OWN_REPLY = "own reply"
    """A server to a caller in its own process, of the same release: only its shape is a promise to other code."""
    EXCHANGED = "exchanged"
    """Either side may be the older one, and unknown members are refused: tokens, keys, bundles."""
    STORED = "stored"
    """Written by an older release and read by a newer one."""


ROLES: Final[dict[type[Contract], Role]] = {
    CallEnvelope: Role.REQUEST,
    ErrorReply: Role.REPLY,
    MintBatch: Role.REQUEST,
    MintReply: Role.REPLY,
    CertificateRequest: Role.REQUEST,
    CertificateReply: Role.REPLY,
    CaBundle: Role.REPLY,
    Claims: Role.EXCHANGED,
    Jwks: Role.EXCHANGED,
    TokenBundle: Role.EXCHANGED,
    StoredRecord: Role.STORED,
    CheckpointManifest: Role.STORED,
}
"""Models that are no operation's. One that is not named here is treated as exchanged, the strictest."""
INSIDE: Final = frozenset({Contract, Capability, Column, CustomObject})
"""Never leave their process as they are."""
NOISE: Final = frozenset({"title", "description", "discriminator"})
_VERSION = re.compile(r'^version = "(\d+\.\d+\.\d+)"$', re.MULTILINE)


def present(version: str) -> Snapshot:
    """The snapshot of the code that is imported here."""
    documents = _documents()
    used = {model for spec in OPERATIONS.values() for model in (spec.request, spec.response)} | documents.keys()
    names, models = _schemas(used)
    kinds = {kind_of(kind): _kind(kind) for kind in KINDS}
    return {
        "version": version,
        "operations": {name: _operation(spec, names) for name, spec in OPERATIONS.items()},
        "documents": {names[model]: role.value for model, role in documents.items()},
        "kinds": kinds,
        "models": models,
    }


def text(snapshot: Snapshot) -> str:
    """Its one form as a file: sorted, a member to a line, so that a difference is a difference of interfaces."""
    return json.dumps(snapshot, indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def version_of(pyproject: str) -> str:
    """The release that the code is on its way to, from the text of pyproject.toml. Raises ValueError."""
    found = _VERSION.search(pyproject)
    if found is None:
        raise ValueError('pyproject.toml has no line `version = "X.Y.Z"`')
    return found[1]


def newest(directory: Path) -> Snapshot | None:
    """The snapshot of the highest version in a directory; None before the first release."""
    files = sorted(directory.glob("*.json"), key=lambda path: tuple(map(int, path.stem.split("."))))
    return json.loads(files[-1].read_text()) if files else None


def _operation(spec: Operation, names: Mapping[type[Contract], str]) -> dict[str, Any]:
    return {
        "layer": spec.layer.value,
        "kind": spec.kind,
        "audit": spec.audit.value,
        "oneShot": spec.one_shot,
        "staleOk": spec.stale_ok,
        "sync": spec.sync,
        "request": names[spec.request],
        "response": names[spec.response],
    }


def _kind(kind: type[CustomObject]) -> dict[str, Any]:
    """Where its objects are found, and what they are."""
    where = {"apiVersion": API_VERSION, "plural": kind.plural, "namespaced": kind.namespaced}
    return where | {"schema": _quiet(root_schema(kind))}


def _documents() -> dict[type[Contract], Role]:
    """Every model of contracts that is neither an operation's nor a kind's own, nor part of one that is compared."""
    for module in pkgutil.walk_packages(kuangchao_contracts.__path__, "kuangchao_contracts."):
        importlib.import_module(module.name)
    whole = {model for spec in OPERATIONS.values() for model in (spec.request, spec.response)} | ROLES.keys()
    parts = _below(whole | set(KINDS))
    rest = {model for model in _subclasses(Contract) if model.__name__ not in parts} - whole - INSIDE - set(KINDS)
    inner = _below(rest)
    return ROLES | {model: Role.EXCHANGED for model in rest if model.__name__ not in inner}


def _subclasses(model: type[Contract]) -> set[type[Contract]]:
    ours = {kind for kind in model.__subclasses__() if kind.__module__.startswith("kuangchao_contracts.")}
    return ours.union(*(_subclasses(kind) for kind in ours))


def _below(models: Iterable[type[Contract]]) -> set[str]:
    """Names of the models that these consist of."""
    found = set()
    for model in models:
        found |= model.model_json_schema().get("$defs", {}).keys() - {model.__name__}
    return found


def _schemas(models: Iterable[type[Contract]]) -> tuple[dict[type[Contract], str], dict[str, Any]]:
    wanted = sorted(models, key=lambda model: (model.__name__, model.__module__))
    places, generated = models_json_schema(
        [(model, "validation") for model in wanted], by_alias=True, ref_template=REFERENCE + "{model}"
    )
    names = {model: places[model, "validation"]["$ref"].removeprefix(REFERENCE) for model in wanted}
    return names, {name: _quiet(schema) for name, schema in generated.get("$defs", {}).items()}


def _quiet(schema: Any, *, names: bool = False) -> Any:
    """A schema without words for people. `names`: the keys of this mapping are names of members, not keywords."""
    if isinstance(schema, list):
        return [_quiet(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if names or key not in NOISE}
    return {key: _quiet(value, names=not names and key == "properties") for key, value in kept.items()}
