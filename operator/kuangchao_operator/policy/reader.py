"""Bytes of a policy file to the policy. Stricter than YAML: one plain document, nothing said twice, nothing hidden.

Anchors, aliases, tags and merge keys are refused: a reviewer must see what is in force, and no file may be a bomb.
"""

import hashlib
from typing import Any, Final

import yaml

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.policy import Policy, compile_policy, parse_document

MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 6
_STRING: Final = "tag:yaml.org,2002:str"


def read_policy(source: str, data: bytes, generation: int) -> Policy:
    """The policy of a file. Raises InvalidInputError, which names the file, and the line or the rule."""
    try:
        return compile_policy(parse_document(_plain(data)), generation, hashlib.sha256(data).hexdigest())
    except InvalidInputError as error:
        raise InvalidInputError(f"{source}: {error.field}", error.value, error.why, error.nearest) from None


def _plain(data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise InvalidInputError("size", f"{len(data)} bytes", "is too large for a policy", f"{MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8", "strict")
        _check_events(text)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            raise InvalidInputError("document", "empty", "is not a policy", "extends: built-in")
        _check_keys(node)
        return loader.construct_document(node)
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"byte {error.start}", "(not shown)", "is not UTF-8") from None
    except (yaml.YAMLError, ValueError) as error:
        raise _syntax_error(error) from None


def _check_events(text: str) -> None:
    """What is refused before anything is built from it."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = _line(event.start_mark)
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            raise InvalidInputError(
                f"{line}: anchor", event.anchor, "anchors and aliases are not allowed: write it out"
            )
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise InvalidInputError(f"{line}: tag", tag, "tags are not allowed")
        documents += isinstance(event, yaml.DocumentStartEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if documents > 1:
            raise InvalidInputError(f"{line}: document", "---", "a policy is one document")
        if depth > MAX_DEPTH:
            raise InvalidInputError(f"{line}: depth", depth, "is nested too deeply", MAX_DEPTH)


def _check_keys(node: yaml.Node) -> None:
    """Every key is text and stands once. Recursion is bounded by the depth that was checked before."""
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _check_keys(child)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            line = _line(key.start_mark)
            if key.tag != _STRING:
                raise InvalidInputError(f"{line}: key", str(key.value)[:64], "is not the name of a field")
            if key.value in seen:
                raise InvalidInputError(f"{line}: key", key.value[:64], "is given twice")
            seen.add(key.value)
            _check_keys(value)


def _syntax_error(error: Exception) -> InvalidInputError:
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return InvalidInputError(_line(getattr(error, "problem_mark", None)) + ": YAML", "(not shown)", problem)


def _line(mark: Any) -> str:
    return f"line {mark.line + 1}" if mark is not None else "text"
