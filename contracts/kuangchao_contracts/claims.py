"""The closed claim set of a capability token. Values only: `tokens.py` verifies, the issuer signs."""

from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import Field

from kuangchao_contracts.base import Contract

Timestamp = Annotated[int, Field(ge=0, le=2**53, strict=True)]
SYSTEM: Final = "-"
"""`juid` of control-plane tokens that act outside any attempt (and `job` where there is no job); their attempt is 1."""
RANGES: Final = "^[0-9]{1,7}(-[0-9]{1,7})?(,[0-9]{1,7}(-[0-9]{1,7})?)*$"
WORKER_ROLES: Final = frozenset({"agent", "rank"})


class Grant(Contract):
    """One right: an operation on one resource or, with a last segment `*`, on all of one kind in one namespace."""

    op: Annotated[str, Field(max_length=64, strict=True)]
    res: Annotated[str, Field(max_length=512, strict=True)]


class Claims(Contract):
    """The payload of a token; there are no other claims. Names are short because they travel with every call.

    `sub` is `layer:<layer>`, `agent:<ns>/<job>/<pod>` or `rank:<ns>/<job>/<pod>`. Worker tokens name their pod and
    either one `rank` or all `ranks` of the pod (`0-3,7`).
    """

    iss: Annotated[str, Field(max_length=256, strict=True)]
    sub: Annotated[str, Field(max_length=256, strict=True)]
    aud: Annotated[str, Field(max_length=64, strict=True)]
    iat: Timestamp
    nbf: Timestamp
    exp: Timestamp
    jti: Annotated[str, Field(min_length=22, max_length=22, strict=True)]
    cap: Annotated[tuple[Grant, ...], Field(min_length=1, max_length=16)]
    ns: Annotated[str, Field(max_length=63, strict=True)]
    job: Annotated[str, Field(max_length=253, strict=True)]
    juid: Annotated[str, Field(max_length=64, strict=True)]
    att: Annotated[int, Field(ge=1, le=2**53, strict=True)]
    polv: Annotated[int, Field(ge=0, le=2**53, strict=True)]
    one: Annotated[bool, Field(strict=True)]
    rank: Annotated[int, Field(ge=0, le=1_048_575, strict=True)] | None = None
    ranks: Annotated[str, Field(max_length=256, strict=True, pattern=RANGES)] | None = None
    pod: Annotated[str, Field(max_length=253, strict=True)] | None = None
    puid: Annotated[str, Field(max_length=64, strict=True)] | None = None
    par: Annotated[str, Field(min_length=22, max_length=22, strict=True)] | None = None
    cnf: Annotated[dict[str, str], Field(max_length=1)] | None = None

    @property
    def role(self) -> str:
        """What kind of party holds the token: layer, agent or rank."""
        return self.sub.split(":", 1)[0]

    def holds_ranks(self, wanted: Iterable[int]) -> bool:
        """Whether every one of these ranks is this token's own. Never expands a range: its bounds are compared."""
        spans = [(self.rank, self.rank)] if self.rank is not None else []
        for part in filter(None, (self.ranks or "").split(",")):
            low, _, high = part.partition("-")
            spans.append((int(low), int(high or low)))
        return all(any(low <= rank <= high for low, high in spans) for rank in wanted)


REQUIRED: Final = tuple(name for name, field in Claims.model_fields.items() if field.is_required())
