"""Validation errors in a user's terms: file, line, field, value, why, nearest legal value. Decides no validity."""

import difflib
import re
from collections.abc import Iterable
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.rules import TaskRule
from kuangchao_operator.cli.yamltext import Document, Path

_LISTS = ("tuple_type", "list_type", "set_type", "frozen_set_type")
_SHOWN = 120
"""Longest offending value that is repeated in a message."""


def explain(document: Document, kind: type[BaseModel], error: ValidationError) -> InvalidInputError:
    """The first fault of a document. Unknown fields come first: they are often the cause of the others."""
    faults = error.errors(include_url=False)
    fault = min(faults, key=lambda item: item["type"] != "extra_forbidden")
    path = _real_path(document.data, fault["loc"])
    if fault["type"] == "extra_forbidden":
        return _unknown_field(document, kind, path)
    if fault["type"] == "missing":
        return InvalidInputError(document.where(path), None, "is required")
    if fault["type"].startswith("union_tag"):
        return _union_tag(document, path, fault)
    nearest = _nearest_list(kind, path, fault) if fault["type"] in _LISTS else _nearest(fault, path)
    return InvalidInputError(document.where(path), _short(fault["input"]), _why(fault), nearest)


def nearest_word(word: str, choices: Iterable[str]) -> str | None:
    """The choice most like a word, or None when none is."""
    by_lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[close[0]] if close else None


def _real_path(data: Any, loc: tuple[str | int, ...]) -> Path:
    """A location without the tags that unions put in, which are no fields of the file."""
    path: list[str | int] = []
    for place, part in enumerate(loc):
        held = part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int)
        if held:
            data = data[part]
        elif place < len(loc) - 1 or (isinstance(data, dict) and part == data.get("kind")):
            continue
        path.append(part)
    return tuple(path)


def _union_tag(document: Document, path: Path, fault: ErrorDetails) -> InvalidInputError:
    """The field that says which variant an object is, missing or with an unknown word."""
    context = fault["ctx"]
    field, value = context["discriminator"].strip("'"), context.get("tag")
    choices = _choices(context.get("expected_tags", ""))
    why = f"should be {' or '.join(choices)}" if choices else "is required"
    return InvalidInputError(document.where((*path, field)), value, why, nearest_word(str(value), choices))


def _unknown_field(document: Document, kind: type[BaseModel], path: Path) -> InvalidInputError:
    model: Any = kind
    above: Any = None
    data = document.data
    for part in path[:-1]:
        data = data[part]
        above, model = model, _member(model, part, data)
    names = _names(model) if model else []
    for other in _variants(above, path[-2]) if len(path) > 1 else ():
        if other is not model and path[-1] in _names(other):
            own, tag = _tag(model), _tag(other)
            why = f"unknown field: kind {own} has none, kind {tag} has"
            return InvalidInputError(document.where(path), path[-1], why, f"kind: {tag}")
    why = "unknown field" + (f"; fields here: {', '.join(names)}" if 0 < len(names) <= 12 else "")
    return InvalidInputError(document.where(path), path[-1], why, nearest_word(str(path[-1]), names))


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _annotation(model: Any, part: str | int) -> Any:
    """The annotation of a member of a model, by its name in the file."""
    fields = model.model_fields.items() if model is not None else ()
    return next((field.annotation for name, field in fields if (field.alias or name) == part), None)


def _variants(model: Any, part: str | int) -> list[type[BaseModel]]:
    """The kinds of a member that is told by its kind."""
    return [one for one in _models(_annotation(model, part)) if _tag(one) is not None]


def _member(model: Any, part: str | int, data: Any) -> type[BaseModel] | None:
    """The model of a member of a model, or of an element when `part` is an index."""
    if model is None or isinstance(part, int):
        return model  # type: ignore[no-any-return]  # a list's elements were resolved with the list
    candidates = list(_models(_annotation(model, part)))
    tagged = [c for c in candidates if isinstance(data, dict) and _tag(c) == data.get("kind")]
    return next(iter(tagged or candidates), None)


def _models(annotation: Any) -> Iterable[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, Annotated, tuple):
        for argument in get_args(annotation):
            yield from _models(argument)


def _tag(model: type[BaseModel]) -> Any:
    field = model.model_fields.get("kind")
    return get_args(field.annotation)[0] if field is not None and get_origin(field.annotation) is Literal else None


def _why(fault: ErrorDetails) -> str:
    message = fault["msg"]
    return message[:1].lower() + message[1:].replace("Input should", "should")


def _short(value: Any) -> Any:
    return value if len(repr(value)) <= _SHOWN else repr(value)[:_SHOWN] + "..."


def _nearest(fault: ErrorDetails, path: Path) -> object | None:
    context, kind, value = fault.get("ctx", {}), fault["type"], fault["input"]
    for bound in ("ge", "le"):
        if bound in context:
            return context[bound]  # type: ignore[no-any-return]  # a number
    if kind in ("literal_error", "enum"):
        choices = _choices(str(context.get("expected", "")))
        return nearest_word(str(value), choices) or next(iter(choices), None)
    if kind == "int_type" and isinstance(value, bool):
        return _switched(path) if value else None
    if kind in ("int_type", "int_from_float", "int_parsing"):
        return _nearest_integer(value)
    if kind in ("bool_type", "bool_parsing"):
        return "true or false"
    if kind == "string_pattern_mismatch" and path[-1:] == ("task",):
        return _function_of_a_module(str(value), str(context["pattern"]))
    if kind == "string_type" and not isinstance(value, dict | list | Enum):
        return f'"{value}"'
    return None


def _switched(path: Path) -> str | None:
    """What somebody means who switches an axis on: the planner chooses its size where the task has rules for it."""
    axis = str(path[-1])
    return f"2, or taskRules: [{axis}]" if "parallelism" in path and axis in tuple(TaskRule) else None


def _function_of_a_module(text: str, pattern: str) -> str:
    """What somebody means who names a file, or a function as Python's own dots have it."""
    place, _, function = text.partition(":")
    module = place.removesuffix(".py").strip("./").replace("/", ".")
    if not function and module == place:
        module, _, function = module.rpartition(".")
        module, function = (module, function) if module else (function, "")
    named = f"{module}:{function or 'function'}"
    return named if re.fullmatch(pattern, named) else "module:function"


def _nearest_list(kind: type[BaseModel], path: Path, fault: ErrorDetails) -> str | None:
    """A list of the one entry that stands where a list belongs, or of the word that is most like it."""
    value, model = fault["input"], _at(kind, path[:-1])
    if value is None or isinstance(value, dict):
        return None
    kinds = list(_arguments(_annotation(model, path[-1])))
    words = [word for one in kinds for word in _words(one)]
    if isinstance(value, str) and not words and str in kinds:
        return _as_arguments(value)
    entries = [part.strip() for part in str(value).split(",")]
    found = [nearest_word(entry, words) if words else entry for entry in entries]
    return f"[{', '.join(entry for entry in found if entry is not None)}]" if all(found) else None


def _as_arguments(line: str) -> str | None:
    """A command line as the list that it stands for; None where its quotes are not closed."""
    import shlex

    import yaml

    try:
        parts = shlex.split(line)
    except ValueError:
        return None
    return str(yaml.safe_dump(parts, default_flow_style=True, width=10_000, allow_unicode=True)).strip()


def _at(kind: type[BaseModel], path: Path) -> Any:
    model: Any = kind
    for part in path:
        model = _member(model, part, None)
    return model


def _arguments(annotation: Any) -> Iterable[Any]:
    """All types that an annotation is made of."""
    yield annotation
    for argument in get_args(annotation):
        yield from _arguments(argument)


def _words(annotation: Any) -> list[str]:
    return [one.value for one in annotation] if isinstance(annotation, type) and issubclass(annotation, Enum) else []


def _nearest_integer(value: Any) -> int | None:
    try:
        return round(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


def _choices(text: str) -> list[str]:
    return [part.strip(" '") for part in text.replace(" or ", ",").split(",") if part.strip(" '")]
