"""The modules of a model that follow one another, as its rules name them, and what a pipeline stage keeps of them."""

from collections.abc import Iterator, Sequence

from torch import nn

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.rules import ParallelRules

FIELD = "task.rules.chain"


def matching(module: nn.Module, pattern: str) -> Iterator[str]:
    """Names of the modules that a pattern means, in the model's order; `*` stands for one part of a name."""
    wanted = pattern.split(".")

    def walk(below: nn.Module, depth: int, name: str) -> Iterator[str]:
        if depth == len(wanted):
            yield name
            return
        for part, child in below.named_children():
            if wanted[depth] in (part, "*"):
                yield from walk(child, depth + 1, f"{name}.{part}" if name else part)

    return walk(module, 0, "")


def chain(module: nn.Module, rules: ParallelRules) -> tuple[str, ...]:
    """Names of the links in order; empty where the rules give none and the model is not an `nn.Sequential`.

    Raises InvalidInputError for a rule that means no module, and where parameters are in no link.
    """
    if not rules.chain:
        return tuple(name for name, _ in module.named_children()) if isinstance(module, nn.Sequential) else ()
    names = []
    for pattern in rules.chain:
        found = list(matching(module, pattern))
        if not found:
            raise InvalidInputError(FIELD, pattern, "names no module of the model")
        names += found
    loose = [name for name, _ in module.named_parameters() if not any(name.startswith(f"{link}.") for link in names)]
    if loose:
        raise InvalidInputError(FIELD, rules.chain, f"does not hold the parameter {loose[0]}")
    return tuple(names)


def units(module: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Links with parameters: what is gathered and reduced at a time where data is sharded."""
    found = [module.get_submodule(name) for name in names]
    return [link for link in found if any(True for _ in link.parameters())]
