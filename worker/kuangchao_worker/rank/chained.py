"""Whether a model does what its chain says: each link gets what the one before it gives, and nothing lies between.

A pipeline runs the links and never the model's own forward, so what that does beside would be left out without a word.
Looks at one forward pass on torch's meta device, where tensors have no values, and trains nothing.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker.tasks import Task
from kuangchao_worker.tasks.found.traces import META, Trace

log = logging.getLogger(__name__)
FIELD: Final = "task.rules.chain"


class _Ended(Exception):  # noqa: N818 - no error: the model has given its output, and the loss is not looked at
    pass


@dataclass
class _Call:
    """One call of a link: what it is given, and what it gives."""

    link: int
    given: list[Trace]
    output: Trace


@dataclass
class _Pass:
    """A forward pass of the model. `output` stays None where it did not come to its end."""

    given: list[Trace] = field(default_factory=list)
    output: Trace | None = None
    calls: list[_Call] = field(default_factory=list)

    def watch(self, module: nn.Module, links: Iterable[nn.Module]) -> None:
        """Note what the module, and each of its links, is called with and gives; the module's end ends the loss."""
        for link in {id(link): link for link in links}.values():
            link.register_forward_pre_hook(self._begun, with_kwargs=True)
            link.register_forward_hook(self._done)
        module.register_forward_pre_hook(self._began, with_kwargs=True)
        module.register_forward_hook(self._ended)

    def _began(self, _: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.given = list(map(Trace.of, (*given, *named.values())))

    def _ended(self, _: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        del given
        self.output = Trace.of(output)
        raise _Ended

    def _begun(self, link: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.calls.append(_Call(id(link), list(map(Trace.of, (*given, *named.values()))), Trace(None, 0)))

    def _done(self, link: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        del given
        next(call for call in reversed(self.calls) if call.link == id(link)).output = Trace.of(output)


def require_chain(task: Task, links: Callable[[nn.Module], Sequence[str]]) -> None:
    """Raise InvalidInputError naming the first link that the model does not call as its chain says.

    A model that cannot run without values is believed, which the log says.
    """
    seen, names, modules = _Pass(), tuple[str, ...](), list[nn.Module]()
    try:
        with META:
            module = task.model()
        names = tuple(links(module))
        modules = [module.get_submodule(name) for name in names]
        seen.watch(module, modules)
        batch = task.collate([task.dataset[0], task.dataset[0]])
        task.loss(module, tree_map_only(torch.Tensor, lambda tensor: tensor.to(META), batch))
    except _Ended:
        pass
    except Exception as error:  # noqa: BLE001 - code of the task, which met tensors without values
        said = (str(error).splitlines() or [""])[0]
        log.warning("the chain is not compared with the model: %s: %s", type(error).__name__, said)
    if seen.output is not None:
        _compare(names, modules, seen, seen.output)


def _compare(names: Sequence[str], modules: Sequence[nn.Module], seen: _Pass, output: Trace) -> None:
    if len(seen.given) != 1:
        raise InvalidInputError("task.loss", len(seen.given), "a pipeline's model takes one tensor", 1)
    if [call.link for call in seen.calls] != list(map(id, modules)):
        known = {id(module): name for name, module in zip(names, modules, strict=True)}
        called = ", ".join(known[call.link] for call in seen.calls[:8])
        raise InvalidInputError(FIELD, names, "is not the order in which the model calls its links", called)
    (before,), whose = seen.given, "the model is given"
    for name, call in zip(names, seen.calls, strict=True):
        if len(call.given) != 1:
            raise InvalidInputError(FIELD, name, f"is called with {len(call.given)} values; a link takes one", 1)
        if not before.same(call.given[0]):
            why = f"does not get what {whose}: what the model does between would be left out of a pipeline"
            raise InvalidInputError(FIELD, name, why)
        before, whose = call.output, f"{name} gives"
    if not before.same(output):
        why = "does not give the model's output: what the model does after it would be left out of a pipeline"
        raise InvalidInputError(FIELD, names[-1], why)
