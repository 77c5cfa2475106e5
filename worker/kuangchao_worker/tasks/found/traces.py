"""What modules are called with, and what they give, in one forward pass without values."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction

META: Final = torch.device("meta")
VIEWS: Final = frozenset({"ViewBackward0", "AliasBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"})


class Trace(NamedTuple):
    """A tensor as it was at this moment: what is written to it later makes it another one."""

    tensor: Any
    version: int

    @classmethod
    def of(cls, value: Any) -> "Trace":
        """Of any value; what is no tensor has no versions."""
        return cls(value, value._version if isinstance(value, torch.Tensor) else 0)  # noqa: SLF001 - no other name

    def same(self, other: "Trace") -> bool:
        """Whether both are one tensor, or the other is a view of all of it in its shape; in both directions, as
        gradients may be changed where values are not.
        """
        one, two = self.tensor, other.tensor
        if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
            return one is two
        alike = _place(one) == _place(two) and storage(one) == storage(two) and self.version == other.version
        return alike and not one._backward_hooks and (one is two or _handed_back(one, two))  # noqa: SLF001


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
        before, held, learns = self.given, set[int](), False
        for call in self.within:
            alone = len(before) == 1 and len(call.given) == 1 and before[0].same(call.given[0])
            if not alone or call.output is None or (learns and not call.given[0].tensor.requires_grad):
                return []
            before = (call.output,)
            parameters = list(module.get_submodule(call.name).parameters())
            held |= set(map(id, parameters))
            # what a model runs without gradients would get some in a pipeline
            learns = learns or any(parameter.requires_grad for parameter in parameters)
        whole = {id(parameter) for parameter in module.get_submodule(self.name).parameters()}
        if len(before) != 1 or self.output is None or not before[0].same(self.output) or held != whole:
            return []
        return self.within if self.output.tensor.requires_grad or not learns else []


class Calls:
    """To be entered around a forward pass: all calls of a model and of the modules in it."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._open = module, [Call("")]
        self._handles: list[Any] = []
        self._hooked = {name for name, part in module.named_modules() if hooked(part)}
        """What these do beside their forward would be left out where they are taken apart."""

    def __enter__(self) -> "Calls":
        for name, part in self._module.named_modules():
            self._handles += (
                part.register_forward_pre_hook(self._begin(name), with_kwargs=True, prepend=True),
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
        for link in () if call.name in self._hooked else call.links(self._module):
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


def hooked(part: nn.Module) -> bool:
    """Whether calls of a module do more than its class says, or its parameters' gradients are changed on their way."""
    own = vars(part)
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    changed = any(
        parameter._backward_hooks or parameter._post_accumulate_grad_hooks  # noqa: SLF001 - nothing else says so
        for parameter in part.parameters(recurse=False)
    )
    return "forward" in own or changed or any(own[kind] for kind in kinds)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.storage_offset(), tensor.is_conj()


def _handed_back(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether gradients of the second tensor are those of the first, of which it is a view of its shape."""
    if not two.requires_grad:
        return not one.requires_grad
    if isinstance(two.grad_fn, CheckpointFunction._backward_cls):  # noqa: SLF001 - has no other name
        return True
    made = two.grad_fn
    return made is not None and made.name() in VIEWS and made.next_functions[0][0] is one.grad_fn is not None


def _count(module: nn.Module, name: str) -> int:
    return sum(parameter.numel() for parameter in module.get_submodule(name).parameters())


def storage(tensor: torch.Tensor) -> int:
    """The identity of what a tensor and its views share."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - on the meta device no other identity exists
