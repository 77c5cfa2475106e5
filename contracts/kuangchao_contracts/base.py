"""The base of every value that crosses a boundary, and its one canonical byte form."""

import hashlib
import json
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticKnownError

Name = Annotated[str, Field(max_length=253, min_length=1)]
ShortText = Annotated[str, Field(max_length=256)]
Text = Annotated[str, Field(max_length=1024)]
MOST_COUNT: Final = 1_048_576
"""The most of anything that is counted: devices, layers, ranks of a group, a model's widths."""
MOST_INT64: Final = 2**63 - 1
"""The API server takes no larger number: schemas of kinds say so by the format, int64."""


def _within_int64(value: int) -> int:
    if value > MOST_INT64:
        raise PydanticKnownError("less_than_equal", {"le": MOST_INT64})
    return value


INT64: Final = AfterValidator(_within_int64)


class Contract(BaseModel):
    """Immutable, closed and camelCase on the wire; unknown fields are errors, never ignored."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        validate_default=True,
        ser_json_inf_nan="strings",
        protected_namespaces=(),
    )

    def wire(self) -> dict[str, Any]:
        """JSON-ready mapping with wire names; fields that are None are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @classmethod
    def from_reply(cls, body: bytes | dict[str, Any]) -> Self:
        """An answer as its caller reads it: members that this release does not know are left out, at any depth.

        So a newer server can say more to an older caller (`hack/interfaces`). Requests and tokens are never read so.
        """
        if isinstance(body, bytes):
            return cls.model_validate_json(body, extra="ignore")
        return cls.model_validate(body, extra="ignore")

    def canonical(self) -> bytes:
        """Bytes that are the same for equal values on any machine: sorted keys, ASCII, no spaces."""
        return canonical_json(self.wire())

    def content_hash(self) -> str:
        """SHA-256 of `canonical()`, in hex."""
        return hashlib.sha256(self.canonical()).hexdigest()

    def audit_text(self) -> str:
        """What an audit record says of this request beyond its hash: numbers and digests only, never free text."""
        return ""

    def replace(self, **changes: Any) -> Self:
        """A copy with the named fields changed, validated again (model_copy would not validate)."""
        return type(self).model_validate({**{k: getattr(self, k) for k in type(self).model_fields}, **changes})


def canonical_json(value: Any) -> bytes:
    """Canonical JSON of plain data; NaN and infinity raise ValueError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
