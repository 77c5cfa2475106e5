"""What modules are called with, and what they give, in one forward pass without values."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn


class Trace(NamedTuple):
    """A tensor as it was at this moment: what is written to it later makes it another one."""

    tensor: Any
    version: int

    @classmethod
    def of(cls, value: Any) -> "Trace":
        """Of any value; what is no tensor has no versions."""
        return cls(value, value._version if isinstance(value, torch.Tensor) else 0)  # noqa: SLF001 - no other name

    def same(self, other: "Trace") -> bool:
        """Whether both are one tensor, or one is a view of all of the other in its shape."""
        one, two = self.tensor, other.tensor
        if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
            return one is two
        alike = (one.shape, one.stride(), one.dtype) == (two.shape, two.stride(), two.dtype)
        return alike and _storage(one) == _storage(two) and self.version == other.version


@dataclass(eq=False)
class Call:
    """One call of a module."""

    name: str
    given: tuple[Trace, ...] = ()
    output: Trace | None = None
    within: list["Call"] = field(default_factory=list)
    """Calls of other modules that it made, in order."""

    def links(self, module: nn.Module) -> list["Call"]:
        """The calls within, where each takes the one tensor that the one before it gives and nothing is left beside
        them; else none."""
        before, held = self.given, set[int]()
        for call in self.within:
            if len(before) != 1 or len(call.given) != 1 or not before[0].same(call.given[0]) or call.output is None:
                return []
            before = (call.output,)
            held |= {id(parameter) for parameter in module.get_submodule(call.name).parameters()}
        whole = {id(parameter) for parameter in module.get_submodule(self.name).parameters()}
        ends = len(before) == 1 and self.output is not None and before[0].same(self.output)
        return self.within if ends and held == whole else []


class Calls:
    """To be entered around a forward pass: all calls of a model and of the modules in it."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._open = module, [Call("")]
        self._handles: list[Any] = []

    def __enter__(self) -> "Calls":
        for name, part in self._module.named_modules():
            self._handles += (
                part.register_forward_pre_hook(self._begin(name), with_kwargs=True),
                part.register_forward_hook(self._end),
            )
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def model(self) -> Call | None:
        """The one call of the model; None where it was called never or again."""
        made = self._open[0].within
        return made[0] if len(made) == 1 else None

    def chain(self) -> list[str]:
        """Names of the modules that follow one another from the model's input to its output; () where they do not.

        One that holds the better part of the model and is itself such a chain is taken apart.
        """
        call = self.model()
        return [link.name for link in self._apart(call)] if call is not None else []

    def last(self) -> str:
        """The innermost module whose output is the model's."""
        call = self.model()
        while call is not None and call.within:
            inner = call.within[-1]
            if call.output is None or inner.output is None or not call.output.same(inner.output):
                break
            call = inner
        return call.name if call is not None else ""

    def _apart(self, call: Call) -> Iterator[Call]:
        for link in call.links(self._module):
            inner = list(self._apart(link)) if 2 * _count(self._module, link.name) > _count(self._module, "") else []
            yield from inner or [link]

    def _begin(self, name: str) -> Any:
        def begin(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            call = Call(name, tuple(map(Trace.of, (*given, *named.values()))))
            self._open[-1].within.append(call)
            self._open.append(call)

        return begin

    def _end(self, _: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        del given
        self._open.pop().output = Trace.of(output)


def _count(module: nn.Module, name: str) -> int:
    return sum(parameter.numel() for parameter in module.get_submodule(name).parameters())


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - on the meta device no other identity exists
