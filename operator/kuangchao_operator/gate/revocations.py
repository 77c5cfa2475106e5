"""What people take back, as they write it into the ConfigMap `kuangchao-revocations`: text in, values out. Pure.

Keys are `jti.<token id>` (value: unix seconds until which it could be used, or nothing), `kid.<key id>` and
`job.<uid>`. A key that cannot be read is named and left out, a value that cannot be read is as none; neither keeps the
rest from being applied.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kuangchao_contracts.tokens import MAX_LEASE_SECONDS

KEPT_SECONDS: Final = MAX_LEASE_SECONDS + 60
"""How long an entry outlives the time that it gives: whoever writes the present moment means a token that may live a
whole lease from now, clocks differ, and nothing is lost by refusing it longer."""
_FORMS: Final = {
    "jti": re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII),
    "kid": re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII),
    "job": re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII),
}
_NEAREST: Final = {
    "jti": "the 22 characters of a token's jti",
    "kid": "the 43 characters of a key's kid",
    "job": "metadata.uid of a TrainingJob",
}
_UNTIL: Final = re.compile(r"[0-9]{1,12}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Revocations:
    """What is taken back now: tokens with the time of their end, signing keys, jobs by uid."""

    tokens: Mapping[str, int] = field(default_factory=dict)
    kids: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()

    def keys(self) -> frozenset[str]:
        """The same as keys of the ConfigMap."""
        return frozenset(self.entries())

    def entries(self) -> dict[str, str]:
        """The same as data of the ConfigMap."""
        named = {"kid": self.kids, "job": self.jobs}
        return {key_of("jti", name): str(until) for name, until in self.tokens.items()} | {
            key_of(kind, name): "" for kind, names in named.items() for name in sorted(names)
        }


@dataclass(frozen=True, slots=True)
class Reading:
    """What the ConfigMap says. `stamps`: entries that came without a time and get one, so that they end."""

    revocations: Revocations
    stamps: Mapping[str, str]
    expired: frozenset[str]
    malformed: Mapping[str, str]
    """Keys with a fault: what became of them, and why."""


def key_of(kind: str, name: str) -> str:
    """The key of an entry of a kind (jti, kid, job)."""
    return f"{kind}.{name}"


def fault(kind: str, name: str) -> str | None:
    """What a name of this kind should be instead; None for a good one."""
    form = _FORMS.get(kind)
    if form is None:
        return f"keys are jti.<id>, kid.<id> or job.<uid>, not {kind}."
    return None if form.fullmatch(name) else f"is not {_NEAREST[kind]}"


def read(data: Mapping[str, str], now: float) -> Reading:
    """Read the ConfigMap's data."""
    tokens: dict[str, int] = {}
    stamps, malformed = dict[str, str](), dict[str, str]()
    named: dict[str, set[str]] = {"kid": set(), "job": set()}
    expired = set()
    for key, value in sorted(data.items()):
        kind, _, name = key.partition(".")
        until = value.strip()
        problem = fault(kind, name)
        if problem is None and kind == "jti" and until and _UNTIL.fullmatch(until) is None:
            # which token is meant is plain, so a slip in its time must not leave it good
            malformed[key], until = "has a value that is no time in unix seconds: taken back from now on", ""
        if problem is not None:
            malformed[key] = f"is ignored: {problem}"
        elif kind != "jti":
            named[kind].add(name)
        elif until and int(until) + KEPT_SECONDS <= now:
            expired.add(key)
        else:
            tokens[name] = int(until or now + MAX_LEASE_SECONDS)
            if not until:
                stamps[key] = str(tokens[name])
    return Reading(
        Revocations(tokens, frozenset(named["kid"]), frozenset(named["job"])), stamps, frozenset(expired), malformed
    )


def writers(body: Mapping[str, Any]) -> dict[str, str]:
    """Field manager and time of the last write of each key of a ConfigMap."""
    return {key: who for entry in body["metadata"].get("managedFields") or () for key, who in _written(entry)}


def _written(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    fields = (entry.get("fieldsV1") or {}).get("f:data") or {}
    who = f"{entry.get('manager', 'unknown')} at {entry.get('time', 'unknown')}"
    return ((name.removeprefix("f:"), who) for name in fields if name.startswith("f:"))
