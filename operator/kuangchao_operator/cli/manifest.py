"""Manifests from files: parsed, checked against the models and their rules, with errors that name line and remedy.

Judges a file exactly as the API server would; never fills in what the user left out.
"""

import json
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from kuangchao_contracts.api import ResourceDescriptorObject, ResourcePool, TrainingJob
from kuangchao_contracts.api.meta import CustomObject
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.names import API_VERSION
from kuangchao_operator.cli.explain import explain, nearest_word
from kuangchao_operator.cli.files import ARGUMENT, STDIN, read_text
from kuangchao_operator.cli.rules import check_job
from kuangchao_operator.cli.yamltext import Document, parse

T = TypeVar("T", bound=CustomObject)
M = TypeVar("M", bound=BaseModel)
RESOURCES = "--resources"
KINDS: dict[str, type[CustomObject]] = {
    "TrainingJob": TrainingJob,
    "ResourcePool": ResourcePool,
    "ResourceDescriptor": ResourceDescriptorObject,
}


def read(name: str, option: str = ARGUMENT) -> list[Document]:
    """The documents of a file that an option names, or of standard input for `-`. Raises InvalidInputError."""
    return parse("stdin" if name == STDIN else name, read_text(option, name))


def read_job(name: str) -> TrainingJob:
    """The one TrainingJob of a file. Raises InvalidInputError."""
    documents = read(name)
    if len(documents) != 1:
        why = (
            f"holds {len(documents)} documents and must hold exactly one TrainingJob; "
            "pools and descriptors go into --resources"
        )
        raise InvalidInputError(ARGUMENT, name, why, "1 document")
    job = cast(TrainingJob, to_object(documents[0], ("TrainingJob",)))
    check_job(documents[0], job)
    return job


def read_resources(name: str) -> tuple[list[ResourceDescriptorObject], list[ResourcePool]]:
    """Descriptors and pools of a file. Raises InvalidInputError."""
    objects = [
        to_object(item, ("ResourceDescriptor", "ResourcePool"))
        for document in read(name, RESOURCES)
        for item in _items(document)
    ]
    return _of_kind(objects, ResourceDescriptorObject), _of_kind(objects, ResourcePool)


def _items(document: Document) -> list[Document]:
    """The members of a List, as `kubectl get -o json` writes it, each with its lines; otherwise the document itself."""
    data = document.data
    if not (isinstance(data, dict) and data.get("kind") == "List" and isinstance(data.get("items"), list)):
        return [document]
    return [document.part(("items", place)) for place in range(len(data["items"]))]


def _of_kind(objects: Sequence[CustomObject], kind: type[T]) -> list[T]:
    return [item for item in objects if isinstance(item, kind)]


def to_object(document: Document, kinds: tuple[str, ...]) -> CustomObject:
    """The typed object of a document that must be of one of these kinds. Raises InvalidInputError."""
    data = document.data
    if not isinstance(data, dict):
        raise InvalidInputError(document.where(()), type(data).__name__, "is not a Kubernetes object (a mapping)")
    _check_kind(document, data, kinds)
    return typed(document, KINDS[data["kind"]])


def typed(document: Document, kind: type[M]) -> M:
    """The data of a document as a model. Raises InvalidInputError."""
    try:
        text = json.dumps(document.data, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise InvalidInputError(document.where(()), kind.__name__, f"cannot be written as JSON: {error}") from None
    try:
        # strict and by alias: "2" is no integer and per_pod is no field for the API server either
        return kind.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise explain(document, kind, error) from None


def _check_kind(document: Document, data: dict[str, Any], kinds: tuple[str, ...]) -> None:
    version, kind = data.get("apiVersion"), data.get("kind")
    if version != API_VERSION:
        raise InvalidInputError(document.where(("apiVersion",)), version, "is not ours", API_VERSION)
    if kind not in kinds:
        nearest = nearest_word(str(kind), kinds) or kinds[0]
        raise InvalidInputError(
            document.where(("kind",)), kind, f"is not expected here ({' or '.join(kinds)})", nearest
        )
