"""YAML text to plain data with the line of every field, as strict as the API server. Knows no kinds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from kuangchao_contracts.errors import InvalidInputError

Path = tuple[str | int, ...]
MAX_BYTES = 3 * 2**20
"""Longest file that is read; the API server takes objects of up to 1.5 MB."""


class _Loader(yaml.SafeLoader):
    """SafeLoader without timestamps: Kubernetes keeps those as text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document: its data and where each field stands."""

    source: str
    data: Any
    lines: dict[Path, int]

    def where(self, path: Path) -> str:
        """`file:line: a.b[0]` of a field, or of the nearest ancestor that has a line."""
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        return f"{self.source}:{self.lines.get(known, 1)}: {dotted(path)}"

    def part(self, path: Path) -> "Document":
        """What stands at a path, as a document of its own with its lines; its data is None where nothing does."""
        data = self.data
        for step in path:
            held = isinstance(step, int) or (isinstance(data, dict) and step in data)
            data = data[step] if held else None
        size = len(path)
        inner = {found[size:]: line for found, line in self.lines.items() if found[:size] == path}
        return Document(self.source, data, inner)


def dotted(path: Path) -> str:
    """A path as people write it: spec.volumes[0].name."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "document"


def parse(source: str, text: str) -> list[Document]:
    """All documents that are not empty. Raises InvalidInputError naming the line of a syntax error or repeated key."""
    if len(text) > MAX_BYTES:
        raise InvalidInputError(source, f"{len(text)} bytes", "is too large for a manifest", f"{MAX_BYTES} bytes")
    try:
        return list(_documents(source, text))
    except yaml.YAMLError as error:
        raise _syntax_error(source, error) from None
    except RecursionError:
        raise InvalidInputError(source, "...", "is nested too deeply") from None


def _documents(source: str, text: str) -> Iterator[Document]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None, "check_node said that there is one"
            lines: dict[Path, int] = {}
            _walk(source, node, (), lines, frozenset())
            data = loader.construct_document(node)
            if data is not None:
                yield Document(source, data, lines)
    finally:
        loader.dispose()


def _walk(source: str, node: yaml.Node, path: Path, lines: dict[Path, int], above: frozenset[int]) -> None:
    line = node.start_mark.line + 1
    if id(node) in above:
        raise InvalidInputError(f"{source}:{line}: {dotted(path)}", "*alias", "contains itself")
    lines.setdefault(path, line)
    if len(lines) > 100_000:
        raise InvalidInputError(f"{source}:{line}: {dotted(path)}", "...", "has too many fields; aliases multiply them")
    if isinstance(node, yaml.MappingNode):
        _walk_mapping(source, node, path, lines, above | {id(node)})
    elif isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            _walk(source, child, (*path, index), lines, above | {id(node)})


def _walk_mapping(
    source: str, node: yaml.MappingNode, path: Path, lines: dict[Path, int], above: frozenset[int]
) -> None:
    seen: set[str] = set()
    for key, value in node.value:
        line = key.start_mark.line + 1
        name = str(key.value)
        if name in seen:
            raise InvalidInputError(f"{source}:{line}: {dotted((*path, name))}", name, "is given twice")
        seen.add(name)
        lines[(*path, name)] = line
        _walk(source, value, (*path, name), lines, above)


def _syntax_error(source: str, error: yaml.YAMLError) -> InvalidInputError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    line = mark.line + 1 if mark is not None else 1
    found = (
        mark.get_snippet(indent=0, max_length=60).splitlines()[0].strip() if mark is not None and mark.buffer else ""
    )
    return InvalidInputError(f"{source}:{line}: YAML", found, problem)
