"""Parts that all kinds share: conditions, metadata as far as we read it, and the CRD facts of a kind."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from kuangchao_contracts.base import Contract


class ConditionStatus(StrEnum):
    """metav1 condition status."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Contract):
    """metav1.Condition."""

    type: Annotated[str, Field(max_length=316)]
    status: ConditionStatus
    reason: Annotated[str, Field(max_length=256, pattern="^[A-Za-z][A-Za-z0-9]*$")]
    message: Annotated[str, Field(max_length=4096)] = ""
    last_transition_time: datetime
    observed_generation: Annotated[int, Field(ge=0)] = 0


def list_map(*keys: str) -> dict[str, Any]:
    """json_schema_extra of a list whose entries are told apart by these fields: no duplicates, merged one by one."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


Conditions = Annotated[tuple[Condition, ...], Field(max_length=16, json_schema_extra=list_map("type"))]


class ObjectMeta(Contract):
    """The part of metadata that we read; the rest is kept by the API server and ignored here."""

    model_config = ConfigDict(extra="ignore")

    name: str = ""
    generate_name: str | None = None
    namespace: str | None = None
    uid: str = ""
    generation: int = 0
    resource_version: str | None = None
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Column(Contract):
    """An additional printer column. `priority` 1 shows only with -o wide."""

    name: str
    type: Literal["string", "integer", "date"]
    json_path: str
    priority: int = 0


class CustomObject(Contract):
    """Base of the kinds. Subclasses set the class variables that crdgen turns into the CRD."""

    plural: ClassVar[str]
    short_names: ClassVar[tuple[str, ...]] = ()
    namespaced: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = ()
    rules: ClassVar[tuple[dict[str, Any], ...]] = ()
    """CEL rules on the root (where metadata.name is visible): {rule, message|messageExpression, fieldPath?}."""

    api_version: Literal["kuangchao.io/v1alpha1"] = "kuangchao.io/v1alpha1"
    metadata: ObjectMeta = ObjectMeta()


def rules(*entries: tuple[str, str]) -> dict[str, Any]:
    """json_schema_extra with CEL rules: (rule, message) each; a message that starts with `=` is an expression."""
    validations = []
    for rule, message in entries:
        key = "messageExpression" if message.startswith("=") else "message"
        validations.append({"rule": rule, key: message.removeprefix("=")})
    return {"x-kubernetes-validations": validations}
