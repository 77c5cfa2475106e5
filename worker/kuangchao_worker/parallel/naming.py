"""Names of modules, and the patterns that rules name them by: `*` stands for one part of a name."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from torch import nn

Value = TypeVar("Value")
COMPILED: Final = "_orig_mod."
"""What `torch.compile` puts before the names of a module that it wraps."""


def matching(module: nn.Module, pattern: str) -> Iterator[str]:
    """Names of the modules that a pattern means, in the model's order.

    One that a model holds under several names comes with its first.
    """
    return distinct(module, named(module, pattern))


def unknown(module: nn.Module) -> str:
    """What to say of a pattern that means no module."""
    compiled = any(COMPILED in f"{name}." for name, _ in module.named_modules())
    why = "; torch.compile(net) gives its modules other names, net.compile() leaves them" if compiled else ""
    return f"names no module of the model{why}"


def distinct(module: nn.Module, names: Iterable[str]) -> Iterator[str]:
    """Of several names of one module the first."""
    seen = set[int]()
    for name in names:
        part = id(module.get_submodule(name))
        if part not in seen:
            seen.add(part)
            yield name


def named(module: nn.Module, pattern: str) -> Iterator[str]:
    """As `matching`, with every name of a module that has several."""
    wanted = pattern.split(".")

    def walk(below: nn.Module, depth: int, name: str) -> Iterator[str]:
        if depth == len(wanted):
            yield name
            return
        for part, child in children(below):
            if wanted[depth] in (part, "*"):
                yield from walk(child, depth + 1, f"{name}.{part}" if name else part)

    return walk(module, 0, "")


def children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """As `named_children`, which leaves out all places but one of a module that is called at several."""
    return ((name, child) for name, child in module._modules.items() if child is not None)  # noqa: SLF001 - see above


def gathered(module: nn.Module, values: Mapping[str, Value]) -> dict[str, Value]:
    """Values of modules by the patterns that mean those modules and no others, in the same order.

    Names that follow one another and differ in numbers alone have one pattern.
    """
    runs: list[tuple[str, list[str]]] = []
    for name in values:
        pattern = ".".join("*" if part.isdigit() else part for part in name.split("."))
        run = next((run for run in runs if run[0] == pattern and values[run[1][0]] == values[name]), None)
        if run is None:
            runs.append((pattern, [name]))
        else:
            run[1].append(name)
    found: dict[str, Value] = {}
    for pattern, names in runs:
        exact = list(named(module, pattern)) == names and pattern not in found
        found |= dict.fromkeys([pattern] if exact else names, values[names[0]])
    return found
