"""Every way to overstep a bound that a CRD's schema declares, found by walking the schema."""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

Schema = dict[str, Any]
Path = tuple[str | int, ...]


class Overstep(NamedTuple):
    """Put `value` at `path` and the API server must refuse, naming `field`."""

    path: Path
    rule: str
    value: Any
    field: str

    @property
    def label(self) -> str:
        return f"{self.field}-{self.rule}"


MISSING = object()
"""As a value: remove the field."""


def oversteps(schema: Schema, sample: Any, path: Path = ("spec",)) -> Iterator[Overstep]:
    """All of them for the fields that `sample` sets."""
    for rule, value in _wrong(schema, sample):
        yield Overstep(path, rule, value, next(part for part in reversed(path) if isinstance(part, str)))
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    for name in schema.get("required", ()):
        yield Overstep((*path, name), "required", MISSING, name)
    for name, child in schema.get("properties", {}).items():
        if name in sample:
            yield from oversteps(child, sample[name], (*path, name))
    if "items" in schema:
        yield from oversteps(schema["items"], sample[0], (*path, 0))
    if "additionalProperties" in schema:
        key = next(iter(sample))
        yield from oversteps(schema["additionalProperties"], sample[key], (*path, key))


def _wrong(schema: Schema, sample: Any) -> Iterator[tuple[str, Any]]:
    kind = schema["type"]
    if "minimum" in schema:
        yield "minimum", schema["minimum"] - 1
    if "maximum" in schema:
        yield "maximum", schema["maximum"] + 1
    if kind == "integer":
        yield "whole", 1.5
        yield "number", "2"
    if kind == "boolean":
        yield "boolean", "yes"
    if kind == "string":
        yield from _wrong_text(schema)
    if kind == "array":
        yield "maxItems", [_with_key(schema, sample[0], place) for place in range(schema["maxItems"] + 1)]
    if "minItems" in schema:
        yield "minItems", []
    if "maxProperties" in schema:
        value = next(iter(sample.values()))
        yield "maxProperties", {f"k{place}": value for place in range(schema["maxProperties"] + 1)}


def _wrong_text(schema: Schema) -> Iterator[tuple[str, Any]]:
    yield "text", 5
    if "enum" in schema:
        yield "enum", "NoSuchWord"
    if "maxLength" in schema:
        yield "maxLength", "a" * (schema["maxLength"] + 1)
    if "minLength" in schema:
        yield "minLength", ""
    if "pattern" in schema:
        yield "pattern", "!?"
    if schema.get("format") == "date-time":
        yield "format", "yesterday"


def _with_key(schema: Schema, item: Any, place: int) -> Any:
    """A copy of an item that differs in the list's keys, so that only the number of items is wrong."""
    copied = copy.deepcopy(item)
    for key in schema.get("x-kubernetes-list-map-keys", ()):
        copied[key] = f"{copied[key]}{place}"
    return copied


def overstepped(manifest: dict[str, Any], step: Overstep) -> dict[str, Any]:
    """A copy of the manifest with one bound overstepped."""
    changed = copy.deepcopy(manifest)
    *parents, last = step.path
    target: Any = changed
    for part in parents:
        target = target[part]
    if step.value is MISSING:
        del target[last]
    else:
        target[last] = step.value
    return changed
