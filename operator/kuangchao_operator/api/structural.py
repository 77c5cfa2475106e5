"""Turns pydantic's JSON schema into the structural schema that a CustomResourceDefinition wants.

Pydantic says `$ref`, `anyOf [.., null]`, `oneOf` with a discriminator, titles and full defaults; the API server takes
none of these. Pure; must never know a particular kind.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

Schema = dict[str, Any]

_KEPT = (
    "type", "format", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems",
    "maxProperties", "description", "required", "default",
)  # fmt: skip
_SCALARS = ("string", "integer", "boolean", "number")


class UnboundedError(ValueError):
    """A string, list or map without an upper bound: CEL costs and object size could not be limited."""


def structural(schema: Schema, *, defaults: bool = True) -> Schema:
    """Structural schema of a pydantic JSON schema. `defaults` False leaves all defaults out (status)."""
    return _Builder(schema.get("$defs", {}), defaults).build(schema, "")


class _Builder:
    """One conversion: the definitions that `$ref` points to, and whether defaults are wanted."""

    def __init__(self, definitions: Schema, defaults: bool) -> None:
        self._definitions, self._defaults = definitions, defaults

    def build(self, schema: Schema, path: str) -> Schema:
        schema = self._flat(schema)
        if "oneOf" in schema:
            return self._union(schema, path)
        if "const" in schema:
            schema = {**schema, "enum": [schema["const"]]}
        out = {key: deepcopy(schema[key]) for key in _KEPT if key in schema}
        out |= {key: deepcopy(value) for key, value in schema.items() if key.startswith("x-kubernetes-")}
        if "description" in out:
            out["description"] = _first_paragraph(out["description"])
        self._children(schema, out, path)
        self._default(out)
        _check_bounds(out, path)
        return _ordered(out)

    def _flat(self, schema: Schema) -> Schema:
        """Without `$ref`, `allOf` and the null alternative; what stands beside them wins over what they point to."""
        while True:
            if "$ref" in schema:
                target = self._definitions[schema["$ref"].rpartition("/")[2]]
                rest = {key: value for key, value in schema.items() if key != "$ref"}
            elif "allOf" in schema:
                target = {key: value for part in schema["allOf"] for key, value in self._flat(part).items()}
                rest = {key: value for key, value in schema.items() if key != "allOf"}
            elif "anyOf" in schema:
                target = _only_alternative(schema["anyOf"])
                rest = {key: value for key, value in schema.items() if key != "anyOf"}
            else:
                return schema
            schema = {**target, **rest}

    def _children(self, schema: Schema, out: Schema, path: str) -> None:
        if "properties" in schema:
            out["properties"] = {
                name: self.build(child, f"{path}.{name}") for name, child in schema["properties"].items()
            }
        elif isinstance(schema.get("additionalProperties"), dict):
            out["additionalProperties"] = self.build(schema["additionalProperties"], f"{path}[*]")
        if "items" in schema:
            out["items"] = self.build(schema["items"], f"{path}[]")
        if out.get("type") == "integer":
            out["format"] = "int64"

    def _default(self, out: Schema) -> None:
        """Scalars keep their default. An object gets `{}` where fields below it have one, so that the server fills in
        the whole tree; empty lists and maps need none."""
        default = out.pop("default", None)
        if not self._defaults or default is None:
            return
        if out.get("type") in _SCALARS:
            out["default"] = default
        elif any("default" in child for child in out.get("properties", {}).values()):
            out["default"] = {}

    def _union(self, schema: Schema, path: str) -> Schema:
        """A union told apart by one field becomes one object: an enum, optional fields, and CEL rules per member."""
        key = schema["discriminator"]["propertyName"]
        members = [self._member(part, key, path) for part in schema["oneOf"]]
        properties: Schema = {key: {"type": "string", "enum": [kind for kind, _ in members]}}
        for _, member in members:
            for name, child in member["properties"].items():
                if properties.setdefault(name, child) != child:
                    raise ValueError(f"{path}.{name}: members of the union disagree on this field")
        out = {"type": "object", "required": [key], "properties": properties}
        out["x-kubernetes-validations"] = _member_rules(key, members, set(properties) - {key})
        return _ordered(out)

    def _member(self, schema: Schema, key: str, path: str) -> tuple[str, Schema]:
        schema = deepcopy(self._flat(schema))
        kind = schema["properties"].pop(key)["const"]
        # A default of a field that only one member has would be a foreign field in all the others.
        for child in schema["properties"].values():
            child.pop("default", None)
        return kind, self.build(schema, path)


def _only_alternative(alternatives: list[Schema]) -> Schema:
    real = [part for part in alternatives if part.get("type") != "null"]
    if len(real) != 1:
        raise ValueError(f"a structural schema has no alternatives: {alternatives}")
    return real[0]


def _member_rules(key: str, members: list[tuple[str, Schema]], names: set[str]) -> list[Schema]:
    rules = []
    for kind, member in members:
        required = sorted(set(member.get("required", ())) - {key})
        foreign = sorted(names - set(member["properties"]))
        for wanted, test, word in ((required, "has", "needs"), (foreign, "!has", "does not take")):
            if wanted:
                condition = " && ".join(f"{test}(self.{name})" for name in wanted)
                rules.append(
                    {
                        "rule": f"self.{key} != '{kind}' || ({condition})",
                        "message": f"{key} {kind} {word} {', '.join(wanted)}",
                    }
                )
    return rules


_BOUNDS: dict[str, Callable[[Schema], bool]] = {
    "string": lambda s: "maxLength" in s or "enum" in s or s.get("format") == "date-time",
    "array": lambda s: "maxItems" in s,
    "object": lambda s: "additionalProperties" not in s or "maxProperties" in s,
}


def _check_bounds(out: Schema, path: str) -> None:
    bounded = _BOUNDS.get(out.get("type", ""))
    if bounded is not None and not bounded(out):
        raise UnboundedError(f"{path or '.'}: {out['type']} has no upper bound")


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())


_ORDER = ("description", "type", "format", "enum", "default", "required", "properties", "additionalProperties", "items")


def _ordered(out: Schema) -> Schema:
    """A fixed order of keys, so that generated files differ only where the models do."""
    rank = {key: place for place, key in enumerate(_ORDER)}
    return dict(sorted(out.items(), key=lambda item: (rank.get(item[0], len(rank)), item[0])))
