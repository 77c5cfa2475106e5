"""Whether a model does what its chain says: each link gets what the one before it gives, and nothing lies between.

A pipeline runs the links and never the model's own forward, so what that does beside would be left out without a word.
Looks at one forward pass on torch's meta device, where tensors have no values, and trains nothing.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker.rank import stages
from kuangchao_worker.tasks import Task
from kuangchao_worker.tasks.found.passes import batch_of, loss_of, made
from kuangchao_worker.tasks.found.traces import META, Calls

log = logging.getLogger(__name__)
FIELD: Final = "task.rules.chain"


def require_chain(task: Task, links: Callable[[nn.Module], Sequence[str]]) -> None:
    """Raise InvalidInputError naming the first link that the model does not call as its chain says, or what reaches the
    loss beside the chain.

    A model that cannot run without values is believed, which the log says; of a loss that cannot, the model alone is
    looked at.
    """
    names, calls, loss = tuple[str, ...](), None, None
    try:
        module = made(task)
        names = tuple(links(module))
        with Calls(module) as calls:
            loss = loss_of(task, module)
    except Exception as error:  # noqa: BLE001 - code of the task, which met tensors without values
        said = (str(error).splitlines() or [""])[0]
        what = "loss" if calls is not None and any(call.ended for call in calls.made()) else "chain"
        log.warning("the %s is not compared with the model: %s: %s", what, type(error).__name__, said)
    if calls is not None:
        _compare(names, calls)
        if loss is not None:
            _require_alone(task, calls, loss)


def _compare(names: Sequence[str], calls: Calls) -> None:
    module = calls.module
    modules = [module.get_submodule(name) for name in names]
    whole = calls.made()[0] if calls.made() else None
    if whole is None or not whole.ended:
        return
    if len(whole.given) != 1:
        raise InvalidInputError("task.loss", len(whole.given), "a pipeline's model takes one tensor", 1)
    found, others = calls.links(whole, modules)
    called = [module.get_submodule(call.name) for call in found]
    if list(map(id, called)) != list(map(id, modules)):
        known = {id(part): name for name, part in zip(names, modules, strict=True)}
        order = ", ".join(known[id(part)] for part in called[:8])
        raise InvalidInputError(FIELD, names, "is not the order in which the model calls its links", order)
    broken = calls.broken(whole, found, others, names)
    if broken is not None:
        raise InvalidInputError(FIELD, *broken)


def _require_alone(task: Task, calls: Calls, loss: Any) -> None:
    """Raise InvalidInputError for a loss that takes more than what one call of the model gives."""
    if len(calls.made()) != 1:
        raise InvalidInputError("task.loss", len(calls.made()), "calls of the model; a pipeline's is called once", 1)
    reached = calls.beside(loss)
    if reached:
        why = "leads to the loss by another way than the model's output, which alone a pipeline has at its end"
        raise InvalidInputError("task.loss", reached, why)
    output = calls.made()[0].output.tensor
    if not isinstance(output, torch.Tensor):
        return
    try:
        batch = batch_of(task)
        with META:
            stages.loss_of(task, output.detach().clone().requires_grad_(), batch)
    except AttributeError as error:
        # with the model itself it went well
        name, why = str(error).strip("'").rpartition("'")[2], "is not the model's output, which alone a pipeline gives"
        raise InvalidInputError("task.loss", name, f"is what the loss takes of the model, and {why}") from None
    except Exception as error:  # noqa: BLE001 - code of the task, which met tensors without values
        log.debug("the loss is not computed from the output of the model alone: %s", error)
