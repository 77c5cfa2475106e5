"""Follows features through one forward pass: from each linear layer that makes them to those that take them.

The pass runs on torch's meta device, where tensors have no values. Between two linear layers every operation is looked
at; what none of the rules knows ends the way of those features, and says so.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kuangchao_worker.tasks.found.axes import MOVING, Axis, LostError, Operand, one_by_one, rule_of, taken_together
from kuangchao_worker.tasks.found.traces import storage


@dataclass(eq=False)
class Region:
    """Features of linear layers that come together, up to the linear layers that take them."""

    columns: list[str] = field(default_factory=list)
    """Layers that make them, in the order of their calls."""
    rows: list[str] = field(default_factory=list)
    parts: set[int] = field(default_factory=set)
    """Into how many parts they fall, at each place: heads, or single features."""
    lost: str = ""
    """Why they must stay together; "" where they need not."""


FRESH: Final = frozenset({"new_empty", "new_zeros", "new_ones", "new_full"})
"""Operators that take from a tensor its type alone."""


MAKING: Final = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor})
"""Functions that make a tensor of numbers, of which an operator never hears."""


class Mark(NamedTuple):
    """A tensor's features: whose they are, and where they lie."""

    region: int
    axis: Axis


class Step(NamedTuple):
    """An operation outside linear layers that computes something: its other arguments, and the shape of its result."""

    operator: str
    values: tuple[str, ...]
    shape: tuple[int, ...]


class Noted(NamedTuple):
    """A step, the features that it gives, how many elements it takes together, and whose it takes: features that it
    gives again, or from which gradients come. What is only looked at, as for figures, may be another for each rank.
    """

    step: Step
    mark: Mark | None = None
    together: tuple[int, ...] = ()
    taken: Mark | None = None


class Numbers(TorchFunctionMode):
    """Notes numbers that become tensors: on the meta device nothing is left of them."""

    def __init__(self, note: Callable[[Step], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        del types
        if func in MAKING:
            self._note(Step(func.__name__, tuple(map(_said, tree_leaves((args, kwargs or {})))), ()))
        return func(*args, **(kwargs or {}))


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch
    """To be entered around a forward pass of a model whose linear layers it hooks."""

    def __init__(self, module: nn.Module, linears: Sequence[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self._steps: list[Noted] = []
        self._module, self._names = module, linears
        self._regions: list[Region] = []
        self._root: list[int] = []
        """By region: the one that it has become a part of, or itself."""
        self._marks: dict[int, Mark] = {}
        self._places: dict[int, Mark] = {}
        """By storage: a mark of some tensor in it."""
        self._held: list[Any] = []
        """Whatever bears a mark, so that no other tensor gets its identity."""
        self._inside = 0
        self._called: set[str] = set()
        self._numbers = Numbers(lambda step: self._steps.append(Noted(step)))
        self._owners = {
            storage(parameter): name
            for name, part in module.named_modules()
            if name in linears or isinstance(part, nn.Embedding)
            for parameter in part.parameters(recurse=False)
        }
        self.used: set[str] = set()
        """Layers and tables whose weights something else takes as well."""

    def hook(self) -> None:
        """Look at each call of the linear layers, and inside of no table's."""
        for name, part in self._module.named_modules():
            if isinstance(part, nn.Embedding):
                part.register_forward_pre_hook(lambda _, given, name=name: self._begin(name, given))
                part.register_forward_hook(lambda _, __, ___: self._end())
        for name in self._names:
            layer = self._module.get_submodule(name)
            layer.register_forward_pre_hook(lambda _, given, name=name: self._enter(name, given))
            layer.register_forward_hook(lambda _, __, output, name=name: self._leave(name, output))

    def regions(self) -> list[Region]:
        """All regions in the order of their first calls."""
        for tensor in self._held:
            if tensor._backward_hooks:  # noqa: SLF001 - nothing else says so
                self._region(self._marks[id(tensor)]).lost = "a hook changes their gradients"
        found = [region for number, region in enumerate(self._regions) if self._root[number] == number]
        for region in found:
            used = self.used.intersection((*region.columns, *region.rows))
            if self._inside:
                region.lost = "a layer ended in an error that the model goes on after"
            region.lost = region.lost or (f"something else takes the weights of {min(used)}" if used else "")
        return found

    def steps(self, divided: frozenset[str] = frozenset(), ranks: int = 1) -> list[Step]:
        """What was computed, or would be where the features of these layers are divided among ranks."""
        return [
            step._replace(shape=_part(step.shape, mark.axis.dim, ranks))
            if mark is not None and not divided.isdisjoint(self._region(mark).columns)
            else step
            for step, mark, *_ in self._steps
        ]

    def fault(self, part: "Watch", divided: frozenset[str]) -> tuple[str, str] | None:
        """A layer, and the first operation that makes something else of its features where there is but a part of them.

        Here all of them were watched, there a part: whatever does not take each for itself must take as many together.
        """
        for whole, less in zip(self._steps, part._steps, strict=False):  # noqa: SLF001 - one of its own
            operator = whole.step.operator
            if operator != less.step.operator:
                # what follows cannot be compared
                return None
            columns = self._region(whole.taken).columns if whole.taken is not None else []
            layer = next((name for name in columns if name in divided), "")
            if layer and whole.together != less.together:
                return layer, f"{operator} takes {less.together[0]} of them together, and {whole.together[0]} of all"
            if layer and whole.mark is not None and one_by_one(operator) and whole.step.values != less.step.values:
                return layer, f"{operator} depends on how many there are"
        return None

    def __enter__(self) -> Self:
        self._numbers.__enter__()  # type: ignore[no-untyped-call]  # torch
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]  # torch

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch
        self._numbers.__exit__(*error)  # type: ignore[no-untyped-call]  # torch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and take the marks of what it is given over to what it gives."""
        del types
        result = func(*args, **(kwargs or {}))
        if not self._inside:
            self._follow(func, args, kwargs or {}, result)
        return result

    def _begin(self, name: str, given: tuple[Any, ...]) -> None:
        self._inside += 1
        if len(given) != 1:
            # torch divides no layer whose input comes by name
            self.used.add(name)

    def _end(self) -> None:
        self._inside -= 1

    def _enter(self, name: str, given: tuple[Any, ...]) -> None:
        self._begin(name, given)
        mark = self._mark(given[0]) if given else None
        if mark is None:
            return
        whole = mark.axis.dim == given[0].dim() - 1 and mark.axis.outer == 1
        if whole:
            self._region(mark).rows.append(name)
        else:
            self._region(mark).lost = f"{name} takes them mixed with others"

    def _leave(self, name: str, output: torch.Tensor) -> None:
        self._end()
        region = Region(columns=[name], parts={output.shape[-1]})
        if name in self._called:
            region.lost = f"{name} is called more than once"
            for other in self._regions:
                if name in (*other.columns, *other.rows):
                    other.lost = region.lost
        self._called.add(name)
        self._regions.append(region)
        self._root.append(len(self._root))
        self._put(output, Mark(len(self._root) - 1, Axis(output.dim() - 1, 1, output.shape[-1])))

    def _follow(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        marks = [self._mark(tensor) for tensor in tensors]
        name = func.overloadpacket.__name__
        places = [storage(tensor) for tensor in tensors]
        self.used.update(self._owners[place] for place in places if place in self._owners)
        for place, mark in zip(places, marks, strict=True):
            if mark is None and place in self._places:
                region = self._region(self._places[place])
                region.lost = region.lost or f"{name}: it takes them in a way that is not known"
        found = self._taken_over(func, args, tensors, marks, result)
        if found is not None:
            for tensor in _tensors(result):
                self._put(tensor, found)
        if name not in MOVING:
            values = tuple(_said(leaf) for leaf in tree_leaves((args, kwargs)))
            shape = next((tuple(tensor.shape) for tensor in _tensors(result)), ())
            together = taken_together(name, tensors[0].shape, args) if tensors else ()
            self._steps.append(Noted(Step(name, values, shape), found, together, found or _trained(tensors, marks)))

    def _taken_over(
        self, func: Any, args: Any, tensors: list[torch.Tensor], marks: list[Mark | None], result: Any
    ) -> Mark | None:
        """The mark of what an operation gives; its regions are lost where it has none, but was given some."""
        known = [mark for mark in marks if mark is not None]
        name = func.overloadpacket.__name__
        if not known or name in FRESH:
            return None
        try:
            axis = self._through(func, args, tensors, marks, result)
        except LostError as error:
            for mark in known:
                self._region(mark).lost = self._region(mark).lost or f"{name}: {error}"
            return None
        region = self._merge(known)
        self._regions[region].parts.add(axis.parts)
        return Mark(region, axis)

    def _through(
        self, func: Any, args: Any, tensors: list[torch.Tensor], marks: list[Mark | None], result: Any
    ) -> Axis:
        whole = (tensor for tensor, mark in zip(tensors, marks, strict=True) if mark is None)
        if not torch.is_grad_enabled() or any(tensor.requires_grad for tensor in whole):
            # each rank would see the gradient of its own part alone
            raise LostError("they meet what is trained whole, or without gradients")
        operands = [
            Operand(tuple(tensor.shape), mark.axis if mark else None)
            for tensor, mark in zip(tensors, marks, strict=True)
        ]
        shapes = {tuple(tensor.shape) for tensor in _tensors(result)}
        if len({len(shape) for shape in shapes}) != 1:
            raise LostError("it gives tensors of several shapes")
        return rule_of(func)(operands, args, max(shapes))

    def _mark(self, tensor: Any) -> Mark | None:
        return self._marks.get(id(tensor))

    def _put(self, tensor: torch.Tensor, mark: Mark) -> None:
        self._marks[id(tensor)] = mark
        self._places[storage(tensor)] = mark
        self._held.append(tensor)

    def _region(self, mark: Mark) -> Region:
        return self._regions[self._find(mark.region)]

    def _find(self, number: int) -> int:
        while self._root[number] != number:
            number = self._root[number]
        return number

    def _merge(self, marks: Sequence[Mark]) -> int:
        """One region of those of all marks, which from now on stay or fall together."""
        first, *others = sorted({self._find(mark.region) for mark in marks})
        kept = self._regions[first]
        for number in others:
            other = self._regions[number]
            kept.columns += other.columns
            kept.rows += other.rows
            kept.parts |= other.parts
            kept.lost = kept.lost or other.lost
            self._root[number] = first
        return first


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))


def _trained(tensors: Sequence[torch.Tensor], marks: Sequence[Mark | None]) -> Mark | None:
    """A mark of what gets gradients from an operation that runs now."""
    found = (mark for one, mark in zip(tensors, marks, strict=True) if mark is not None and one.requires_grad)
    return next(found, None) if torch.is_grad_enabled() else None


def _said(leaf: Any) -> str:
    """An argument by its value, as far as it has one."""
    if isinstance(leaf, torch.Tensor):
        return str(leaf.tolist()) if leaf.device.type == "cpu" else ""
    return str(leaf)


def _part(shape: tuple[int, ...], dim: int, ranks: int) -> tuple[int, ...]:
    return (*shape[:dim], shape[dim] // ranks, *shape[dim + 1 :])
