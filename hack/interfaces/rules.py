"""Compares two snapshots and says, in words, what changed and what of it breaks whom. Pure: snapshots in, changes out.

The order of an upgrade is part of the rules: the operator goes first, so a caller may be older than its server and
never younger. What only a younger caller would notice is listed, not refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from hack.interfaces.schema import Comparison, Kind, Refusal, Schema
from hack.interfaces.snapshot import Role, Snapshot

STRONGER: Final = {("read", "control"), ("step", "control")}
"""Changes of audit class after which every call leaves at least what it left before."""
SAME_PROCESS: Final = frozenset(
    {
        "strategy.plan",
        "strategy.replan",
        "state.assess",
        "execution.launch",
        "execution.stop",
        "execution.reclaim",
        "execution.context",
        "topology.build",
        "topology.destroy",
        "state.submit_gradients",
        "state.save",
        "state.restore",
        "state.snapshot",
        "plugin.open_step",
        "plugin.save",
        "plugin.restore",
    }
)
"""Called inside the operator or inside a rank only: their callers know every value that a reply of theirs may hold."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `path` is what a proposal names: an operation, or an operation, kind or model and a member."""

    path: str
    why: str
    breaking: bool

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


def compare(old: Snapshot, new: Snapshot) -> list[Change]:
    """All changes since a release, by path."""
    changes = [*_operations(old, new), *_documents(old, new), *_kinds(old, new)]
    changes += [change for part in ("models", "kinds") for change in _defaults(part, old, new)]
    return sorted(set(changes), key=lambda change: (change.path, change.why))


def _operations(old: Snapshot, new: Snapshot) -> Iterator[Change]:
    before, after = old["operations"], new["operations"]
    for name in sorted(after.keys() - before.keys()):
        yield Change(name, "is new", breaking=False)
    for name, spec in sorted(before.items()):
        if name not in after:
            yield Change(name, "was removed or renamed: its callers get UnknownOperationError", breaking=True)
            continue
        yield from _authority(name, spec, after[name])
        reply = Role.OWN_REPLY if name in SAME_PROCESS else Role.REPLY
        for part, role in (("request", Role.REQUEST), ("response", reply)):
            pair = (_model(spec[part]), _model(after[name][part]))
            yield from _schemas(f"{name}.{part}", role, pair, old, new)


def _authority(name: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    """What gate and policy read of an operation."""
    for key in ("layer", "kind"):
        if old[key] != new[key]:
            why = f"{key} changed from {old[key]} to {new[key]}: tokens of its callers do not fit"
            yield Change(f"{name}.{key}", why, breaking=True)
    if old["audit"] != new["audit"]:
        stronger = (old["audit"], new["audit"]) in STRONGER
        verb = "was raised" if stronger else "was weakened, or now needs a token"
        yield Change(f"{name}.audit", f"audit class {verb}: {old['audit']} to {new['audit']}", breaking=not stronger)
    words = {
        "oneShot": ("one-shot is no longer needed: a lease is enough", "needs a one-shot: leases are refused"),
        "staleOk": ("refuses tokens of an older attempt", "takes tokens of an older attempt: fencing is weaker"),
        "sync": ("is a coroutine now: step calls cannot reach it", "is a plain function now: it blocks its callers"),
    }
    for key, (dropped, added) in words.items():
        if old[key] != new[key]:
            yield Change(f"{name}.{key}", dropped if old[key] else added, breaking=True)


def _documents(old: Snapshot, new: Snapshot) -> Iterator[Change]:
    before, after = old["documents"], new["documents"]
    for name in sorted(after.keys() - before.keys()):
        yield Change(name, "is new", breaking=False)
    for name, role in sorted(before.items()):
        if name not in new["models"]:
            yield Change(name, "was removed or renamed", breaking=True)
            continue
        yield from _schemas(name, Role(role), (_model(name), _model(name)), old, new)


def _kinds(old: Snapshot, new: Snapshot) -> Iterator[Change]:
    for name in sorted(new["kinds"].keys() - old["kinds"].keys()):
        yield Change(name, "is new", breaking=False)
    for name, kind in sorted(old["kinds"].items()):
        if name not in new["kinds"]:
            yield Change(name, "was removed: its objects are lost", breaking=True)
            continue
        present = new["kinds"][name]
        for key in ("apiVersion", "plural", "namespaced"):
            if kind[key] != present[key]:
                why = f"{key} changed from {kind[key]} to {present[key]}: its objects are not found any more"
                yield Change(f"{name}.{key}", why, breaking=True)
        yield from _schemas(name, Role.STORED, (kind["schema"], present["schema"]), old, new)


def _schemas(path: str, role: Role, pair: tuple[Schema, Schema], old: Snapshot, new: Snapshot) -> Iterator[Change]:
    ours, theirs = old["models"], new["models"]
    forward = Comparison(ours, theirs).refusals(pair[0], pair[1], path)
    backward = Comparison(theirs, ours).refusals(pair[1], pair[0], path)
    replies = role in (Role.REPLY, Role.OWN_REPLY)
    older_reader = Comparison(theirs, ours, ignores_unknown=replies, omits_none=True)
    sent_now = older_reader.refusals(pair[1], pair[0], path)
    breaking = {
        Role.REQUEST: _said(forward, "an older caller's"),
        Role.REPLY: _said(sent_now, "for an older caller, the answer's"),
        Role.OWN_REPLY: _said([r for r in sent_now if r.kind is not Kind.WIDTH], "for an older caller, the answer's"),
        Role.EXCHANGED: _said(forward, "written before,") + _said(sent_now, "for an older reader,"),
        Role.STORED: _said([r for r in forward if r.kind is not Kind.TRANSITION], "written before,"),
    }[role]
    yield from breaking
    broken = {change.path for change in breaking}
    for refusal in (*forward, *backward):
        if refusal.path not in broken:
            yield Change(refusal.path, _listed(refusal, forward), breaking=False)


def _said(refusals: list[Refusal], who: str) -> list[Change]:
    return [Change(refusal.path, f"{who} value {refusal.why}", breaking=True) for refusal in refusals]


def _listed(refusal: Refusal, forward: list[Refusal]) -> str:
    """A compatible difference, from the side that would notice it."""
    return f"changed for {'older' if refusal in forward else 'younger'} writers only: {refusal.why}"


def _defaults(part: str, old: Snapshot, new: Snapshot) -> Iterator[Change]:
    """Defaults that changed: nobody is refused, and whoever left the member out gets something else."""
    for name in sorted(old[part].keys() & new[part].keys()):
        schemas = (snapshot[part][name] for snapshot in (old, new))
        before, after = (dict(_members(name, schema.get("schema", schema))) for schema in schemas)
        for path in sorted(before.keys() & after.keys()):
            ours, theirs = (member.get("default", "(none)") for member in (before[path], after[path]))
            if ours != theirs:
                yield Change(path, f"default changed from {ours} to {theirs}", breaking=False)


def _members(path: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    for name, member in schema.get("properties", {}).items():
        yield f"{path}.{name}", member
        yield from _members(f"{path}.{name}", member)
    if isinstance(schema.get("items"), dict):
        yield from _members(f"{path}[]", schema["items"])


def _model(name: str) -> Schema:
    return {"$ref": f"#/models/{name}"}
