"""What a writer may send that a reader refuses, judged by their JSON schemas alone. Pure; knows no operation.

One relation answers all questions of compatibility: old caller and new server, new server and old caller, stored bytes
and new code differ only in who writes and who reads. Must never call a pair compatible because it does not know a
keyword: a constraint of the reader that it cannot judge has to be the writer's own.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

Schema = Mapping[str, Any]
REFERENCE: Final = "#/models/"
LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
EQUAL: Final = ("pattern", "format", "multipleOf", "uniqueItems", "propertyNames", "x-kubernetes-list-type")
RULES: Final = "x-kubernetes-validations"
CHOICES: Final = ("anyOf", "oneOf")
_GUARD = re.compile(r"!has\(self\.([\w.]+)\) \|\|")


class Kind(StrEnum):
    """What sort of refusal it is; who may live with it depends on who reads."""

    SHAPE = "shape"
    """A member or a type."""
    WIDTH = "width"
    """A value outside of what is taken."""
    TRANSITION = "transition"
    """A change of a stored object; the object itself is taken."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that the reader does not take."""

    path: str
    why: str
    kind: Kind = Kind.SHAPE


class Comparison:
    """Two sides, each with the models that its schemas refer to.

    `ignores_unknown`: the reader drops members that it does not know. `omits_none`: the writer leaves members out while
    they are None, so one whose default is None is not on the wire until somebody sets it.
    """

    def __init__(
        self,
        writer: Mapping[str, Schema],
        reader: Mapping[str, Schema],
        *,
        ignores_unknown: bool = False,
        omits_none: bool = False,
    ) -> None:
        self._writer, self._reader = writer, reader
        self._ignores_unknown, self._omits_none = ignores_unknown, omits_none
        self._open: set[tuple[str, str]] = set()

    def refusals(self, writer: Schema, reader: Schema, path: str) -> list[Refusal]:
        """All refusals at and below a place. A model inside itself is judged once."""
        pair = (writer.get("$ref", ""), reader.get("$ref", ""))
        if all(pair):
            if pair in self._open:
                return []
            self._open.add(pair)
        try:
            sent = _alternatives(_resolved(writer, self._writer))
            taken = _alternatives(_resolved(reader, self._reader))
            return [refusal for one in sent for refusal in self._best(one, taken, path)]
        finally:
            self._open.discard(pair)

    def _best(self, sent: Schema, taken: list[Schema], path: str) -> list[Refusal]:
        """Refusals of the reader's alternative that fits best: none if any of them takes everything."""
        sent = _resolved(sent, self._writer)
        answers = []
        for each in taken:
            one = _resolved(each, self._reader)
            answers.append((sent.get("type") != one.get("type"), list(self._plain(sent, one, path))))
        perfect = any(not refusals for _, refusals in answers)
        return [] if perfect else min(answers, key=lambda answer: (answer[0], len(answer[1])))[1]

    def _plain(self, sent: Schema, taken: Schema, path: str) -> Iterator[Refusal]:
        if any(key in schema for schema in (sent, taken) for key in CHOICES):
            yield from self.refusals(sent, taken, path)
            return
        kind, wanted = sent.get("type"), taken.get("type")
        if wanted is not None and kind != wanted and (kind, wanted) != ("integer", "number"):
            yield Refusal(path, f"is {kind or 'anything'}, where {wanted} is wanted")
            return
        yield from _values(sent, taken, path)
        yield from _limits(sent, taken, path)
        yield from _rules(sent, taken, path)
        yield from self._members(sent, taken, path)
        yield from self._parts(sent, taken, path)

    def _members(self, sent: Schema, taken: Schema, path: str) -> Iterator[Refusal]:
        ours, theirs = sent.get("properties", {}), taken.get("properties", {})
        for name in sorted(set(taken.get("required", ())) - set(sent.get("required", ()))):
            yield Refusal(f"{path}.{name}", "must be there, and may be missing")
        for name in sorted(ours):
            if name in theirs:
                yield from self.refusals(ours[name], theirs[name], f"{path}.{name}")
            elif isinstance(taken.get("additionalProperties"), Mapping):
                yield from self.refusals(ours[name], taken["additionalProperties"], f"{path}.{name}")
            elif _closed(taken) and not self._passes_over(ours[name]):
                yield Refusal(f"{path}.{name}", "may be sent, and is not known")

    def _passes_over(self, unknown: Schema) -> bool:
        return self._ignores_unknown or (self._omits_none and unknown.get("default", ...) is None)

    def _parts(self, sent: Schema, taken: Schema, path: str) -> Iterator[Refusal]:
        """What is inside of arrays and of maps with free keys."""
        for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
            if isinstance(taken.get(key), Mapping):
                inner = sent.get(key)
                if key == "additionalProperties" and inner is None and "patternProperties" in sent:
                    inner = next(iter(sent["patternProperties"].values()))
                yield from self.refusals(inner if isinstance(inner, Mapping) else {}, taken[key], path + mark)
        for number, wanted in enumerate(taken.get("prefixItems", ())):
            given = sent.get("prefixItems", ())
            yield from self.refusals(given[number] if number < len(given) else {}, wanted, f"{path}[{number}]")
        if "patternProperties" in taken:
            yield from self._patterned(sent.get("patternProperties", {}), taken["patternProperties"], path)

    def _patterned(self, sent: Mapping[str, Schema], taken: Mapping[str, Schema], path: str) -> Iterator[Refusal]:
        if sent.keys() - taken.keys() or not sent:
            yield Refusal(path, f"has keys that do not match {' or '.join(taken)}")
        for pattern in sorted(sent.keys() & taken.keys()):
            yield from self.refusals(sent[pattern], taken[pattern], path + "{}")


def _resolved(schema: Schema, models: Mapping[str, Schema]) -> Schema:
    """A schema with its reference replaced; what stands beside a reference counts too."""
    while "$ref" in schema:
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**models[schema["$ref"].removeprefix(REFERENCE)], **beside}
    return schema


def _alternatives(schema: Schema) -> list[Schema]:
    found = [alternative for key in CHOICES for alternative in schema.get(key, ())]
    return found or [schema]


def _closed(schema: Schema) -> bool:
    """Whether members that it does not name are refused (or, by the API server, dropped: lost for whoever set them)."""
    named = "properties" in schema or schema.get("additionalProperties") is False
    opened = schema.get("additionalProperties") or schema.get("x-kubernetes-preserve-unknown-fields")
    return bool(named and not opened)


def _values(sent: Schema, taken: Schema, path: str) -> Iterator[Refusal]:
    wanted, given = _listed(taken), _listed(sent)
    if wanted is None:
        return
    if given is None:
        yield Refusal(path, f"may be anything, where only {_words(wanted)} are taken", Kind.WIDTH)
    elif missing := [value for value in given if value not in wanted]:
        yield Refusal(path, f"may be {_words(missing)}, which is no longer or not yet a value", Kind.WIDTH)


def _listed(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return list(schema["enum"]) if "enum" in schema else None


def _words(values: list[Any]) -> str:
    return ", ".join(map(str, values))


def _limits(sent: Schema, taken: Schema, path: str) -> Iterator[Refusal]:
    finite = _listed(sent) is not None  # a closed list of values was judged one by one
    for key in LOWER:
        if key in taken and not finite and sent.get(key, float("-inf")) < taken[key]:
            yield Refusal(
                path, f"may be below {key} {taken[key]} (the writer's is {sent.get(key, 'open')})", Kind.WIDTH
            )
    for key in UPPER:
        if key in taken and not finite and sent.get(key, float("inf")) > taken[key]:
            yield Refusal(
                path, f"may be above {key} {taken[key]} (the writer's is {sent.get(key, 'open')})", Kind.WIDTH
            )
    for key in EQUAL:
        if key in taken and not finite and sent.get(key) != taken[key]:
            yield Refusal(path, f"need not keep {key} {taken[key]}", Kind.WIDTH)


def _rules(sent: Schema, taken: Schema, path: str) -> Iterator[Refusal]:
    """A rule of the API server that the writer did not know: it may be broken, unless it is about a new member only."""
    known = {rule["rule"] for rule in sent.get(RULES, ())}
    for rule in taken.get(RULES, ()):
        guard = _GUARD.match(rule["rule"])
        if rule["rule"] not in known and not (guard and _new(sent, taken, guard[1].split("."))):
            kind = Kind.TRANSITION if "oldSelf" in rule["rule"] else Kind.SHAPE
            yield Refusal(path, f"may break the rule {rule['rule']}", kind)


def _new(sent: Schema, taken: Schema, member: Sequence[str]) -> bool:
    """Whether only the reader knows a member, given by the names that lead to it."""
    (first, *rest), known = member, sent.get("properties", {})
    if first not in taken.get("properties", {}):
        return False
    return first not in known or (bool(rest) and _new(known[first], taken["properties"][first], rest))
