"""What modules are called with, and what they give, in one forward pass without values."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointFunction

from kuangchao_worker.tasks.found.axes import MOVING

META: Final = torch.device("meta")
VIEWS: Final = frozenset({"ViewBackward0", "AliasBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"})
STILL: Final = MOVING - {"clone"}
"""Operators that give what there is already."""
LEFT_OUT: Final = "would be left out of a pipeline"
NO_GRADIENTS: Final = "gives what has no gradient: the model runs without what a pipeline would train"


class Trace(NamedTuple):
    """A tensor as it was at this moment: what is written to it later makes it another one."""

    tensor: Any
    version: int
    made: tuple[Any, int]
    """Where its gradients go: a node of autograd's graph, and which result of that it is."""

    @classmethod
    def of(cls, value: Any) -> "Trace":
        """Of any value; what is no tensor has no versions."""
        if not isinstance(value, torch.Tensor):
            return cls(value, 0, (None, 0))
        return cls(value, value._version, (value.grad_fn, value.output_nr))  # noqa: SLF001 - no other name

    def same(self, other: "Trace") -> bool:
        """Whether both are one tensor, or the other is a view of all of it in its shape; in both directions, as
        gradients may be changed where values are not.
        """
        one, two = self.tensor, other.tensor
        if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
            return one is two
        alike = _place(one) == _place(two) and storage(one) == storage(two) and self.version == other.version
        return alike and not one._backward_hooks and (one is two or _handed_back(one, two))  # noqa: SLF001


NOTHING: Final = Trace.of(None)


@dataclass(eq=False)
class Call:
    """One call of a module."""

    name: str
    given: tuple[Trace, ...] = ()
    output: Trace = NOTHING
    ended: bool = False
    """Whether it came to an output."""
    within: list["Call"] = field(default_factory=list)
    """Calls of other modules that it made, in order."""
    computed: list[str] = field(default_factory=list)
    """Operations of its own forward, beside those calls."""
    kept: list[str] = field(default_factory=list)
    """Attributes that it wrote: its module's, or those of a module that it went on to call."""


class Break(NamedTuple):
    """At which module calls are no chain, and why."""

    name: str
    why: str
    nearest: int | None = None


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch
    """To be entered around a forward pass: all calls of a model and of the modules in it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self.module, self._open = module, [Call("")]
        self._handles: list[Any] = []
        self._hooked = {name for name, part in module.named_modules() if hooked(part)}
        """What these do beside their forward would be left out where they are taken apart."""
        self._attributes: dict[str, dict[str, Any]] = {}
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}

    def __enter__(self) -> Self:
        for name, part in self.module.named_modules():
            self._attributes[name] = _attributes(part)
            self._handles += (
                part.register_forward_pre_hook(self._begin(name), with_kwargs=True, prepend=True),
                part.register_forward_hook(self._end(name)),
            )
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]  # torch

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch
        for handle in self._handles:
            handle.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and note whose it is."""
        del types
        if func.overloadpacket.__name__ not in STILL:
            self._open[-1].computed.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    def running(self) -> str:
        """The innermost module that is called and has not ended; "" outside of all calls, and in the model itself."""
        return self._open[-1].name

    def made(self) -> list[Call]:
        """The calls of the model."""
        return self._open[0].within

    def model(self) -> Call | None:
        """The one call of the model; None where it was called never or again."""
        made = self.made()
        return made[0] if len(made) == 1 else None

    def chain(self, loss: Any) -> list[str]:
        """Names of the modules that follow one another from the model's input to its output; () where they do not.

        One that holds the better part of the model and is itself such a chain is taken apart.
        """
        call = self.model()
        return [link.name for link in self._apart(call)] if call is not None and not self.beside(loss) else []

    def last(self) -> str:
        """The innermost module whose output is the model's."""
        call = self.model()
        while call is not None and call.within:
            inner = call.within[-1]
            if not call.output.same(inner.output):
                break
            call = inner
        return call.name if call is not None else ""

    def links(self, whole: Call, modules: Collection[nn.Module]) -> tuple[list[Call], list[Call]]:
        """Calls of these modules within a call, in order, and it with those around and between them."""
        known, links, others, todo = set(map(id, modules)), list[Call](), list[Call](), [whole]
        while todo:
            call = todo.pop()
            if call is not whole and id(self.module.get_submodule(call.name)) in known:
                links.append(call)
            else:
                others.append(call)
                todo += reversed(call.within)
        return links, others

    def broken(
        self, whole: Call, links: Sequence[Call], others: Sequence[Call], names: Sequence[str] = ()
    ) -> Break | None:
        """The first reason why the links one after the other are not all that the whole does.

        `others` are calls that no link made; `names` the links' own, of one with several the one that is meant.
        """
        before, giver, learns = whole.given, "", False
        for link, name in zip(links, names or [link.name for link in links], strict=True):
            if len(link.given) != 1:
                return Break(name, f"is called with {len(link.given)} values; a link takes one", 1)
            given = link.given[0]
            if len(before) != 1 or not before[0].same(given):
                whose = f"{giver} gives" if giver else "the model is given"
                return Break(name, f"does not get what {whose}: what the model does between {LEFT_OUT}")
            if not isinstance(given.tensor, torch.Tensor):
                return Break(name, f"is called with a {type(given.tensor).__name__}; a link takes one tensor")
            if learns and not given.tensor.requires_grad:
                return Break(giver, NO_GRADIENTS)
            own = list(self.module.get_submodule(link.name).parameters())
            beside = self._reached(link.output, {given.made, before[0].made}, set(map(id, own)))
            if beside:
                return Break(name, f"takes more than it is given: {beside} leads to it by another way")
            # what a model runs without gradients would get some in a pipeline
            learns = learns or any(parameter.requires_grad for parameter in own)
            before, giver = (link.output,), name
        if len(before) != 1 or not before[0].same(whole.output):
            return Break(giver, f"does not give the model's output: what the model does after it {LEFT_OUT}")
        if not isinstance(whole.output.tensor, torch.Tensor):
            return Break(giver, f"gives a {type(whole.output.tensor).__name__}; a link gives one tensor")
        if learns and not whole.output.tensor.requires_grad:
            return Break(giver, NO_GRADIENTS)
        return self._loose(others)

    def beside(self, loss: Any) -> str:
        """A parameter that the loss comes from otherwise than through what the model gives; "" if there is none."""
        if not isinstance(loss, torch.Tensor):
            return ""
        return self._reached(Trace.of(loss), {call.output.made for call in self.made()}, set())

    def _loose(self, others: Sequence[Call]) -> Break | None:
        for call in others:
            name = call.name or "the model"
            if call.name in self._hooked:
                return Break(name, f"has hooks, and lies around links: what they do {LEFT_OUT}")
            if call.computed:
                return Break(name, f"computes something beside its links ({call.computed[0]}), which {LEFT_OUT}")
            if call.kept:
                return Break(name, f"writes {call.kept[0]} outside of its links, which {LEFT_OUT}")
        return None

    def _reached(self, trace: Trace, passed: Collection[tuple[Any, int]], own: set[int]) -> str:
        """A parameter of the model, but for some, to which gradients go by none of the nodes that they may pass."""
        todo, seen = [trace.made], {*passed, (None, 0)}
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            leaf = getattr(node[0], "variable", None)
            if id(leaf) in self._names and id(leaf) not in own:
                return self._names[id(leaf)]
            todo += node[0].next_functions
        return ""

    def _apart(self, call: Call) -> Iterator[Call]:
        parameters = {id(one) for link in call.within for one in self.module.get_submodule(link.name).parameters()}
        loose = parameters != {id(one) for one in self.module.get_submodule(call.name).parameters()}
        if loose or not call.within or self.broken(call, call.within, [call]) is not None:
            return
        for link in call.within:
            inner = list(self._apart(link)) if 2 * _count(self.module, link.name) > _count(self.module, "") else []
            yield from inner or [link]

    def _begin(self, name: str) -> Any:
        def begin(part: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._written(name, part)
            call = Call(name, tuple(map(Trace.of, (*given, *named.values()))))
            self._open[-1].within.append(call)
            self._open.append(call)

        return begin

    def _end(self, name: str) -> Any:
        def end(part: nn.Module, given: tuple[Any, ...], output: Any) -> None:
            del given
            # a call that ended in an error, after which the model went on, is still there
            while self._open[-1].name != name:
                self._open.pop()
            self._written(name, part)
            call = self._open.pop()
            call.output, call.ended = Trace.of(output), True

        return end

    def _written(self, name: str, part: nn.Module) -> None:
        """Note what of a module has changed since it was last looked at, as the work of who runs now."""
        before, now = self._attributes[name], _attributes(part)
        self._attributes[name] = now
        for own in before.keys() | now.keys():
            if not _alike(before.get(own), now.get(own)):
                self._open[-1].kept.append(f"{name}.{own}" if name else own)


def hooked(part: nn.Module) -> bool:
    """Whether calls of a module do more than its class says, or its parameters' gradients are changed on their way."""
    own = vars(part)
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    changed = any(
        parameter._backward_hooks or parameter._post_accumulate_grad_hooks  # noqa: SLF001 - nothing else says so
        for parameter in part.parameters(recurse=False)
    )
    return changed or any(own[kind] for kind in kinds)


def _attributes(part: nn.Module) -> dict[str, Any]:
    return {**vars(part), **part._parameters, **part._buffers}  # noqa: SLF001 - held beside the attributes


def _alike(one: Any, two: Any) -> bool:
    plain = type(one) is type(two) and isinstance(one, bool | int | float | str | torch.Size)
    return one is two or (plain and bool(one == two))


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
