"""Measures a model without memory for it: `python -m kuangchao_worker.tasks.measure MODULE:FUNCTION [KEY=VALUE ...]`.

Parameters and buffers are counted on torch's meta device, where tensors have a shape and no storage. What a forward
pass keeps for the backward pass is counted there too, for a task, whose data says what a batch is. A task that says
itself what its model is is believed, and its parameters are counted beside that. It must train nothing and never put a
parameter on a device. The answer is one JSON object on standard output; what user code prints
goes to standard error. Exit status 2: the name, or what its arguments say, leads to no model.
"""

import contextlib
import importlib
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from torch import nn

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import MeasuredModel, ModelDescriptor
from kuangchao_contracts.rules import ParallelRules, TaskRule
from kuangchao_worker.parallel.nested import mapped
from kuangchao_worker.tasks import NO_RULES, Task, TaskNotFoundError, load_task
from kuangchao_worker.tasks.found.find import joined, missing_rules
from kuangchao_worker.tasks.found.traces import META, storage

BAD_NAME = 2
UNKNOWN = "activations are not measured"


class Measured(NamedTuple):
    """What there is to say of a model."""

    model: ModelDescriptor
    parameters: int
    """Counted, whatever the task says of its model."""
    rules: tuple[TaskRule, ...]
    """Ways to split it for which there are rules."""
    found: ParallelRules
    """Those of the rules that the task does not bring, but its model shows."""
    remark: str
    """What could not be measured; "" when all was."""


def measure(name: str, args: Mapping[str, str]) -> Measured:
    """A model by the name of a task, or of a function without parameters (or a class) that makes a module."""
    make = _function(name)
    if make is None:
        task = load_task(name, args)
        with META:
            module = task.model()
        found, shown = _counted(module, name), missing_rules(task).rules
        rules = allowed(module, joined(task.rules, shown))
        if task.describes is not None:
            return Measured(task.describes, found.parameters, rules, shown, "")
        model, remark = _with_activations(found, task, module)
        return Measured(model, found.parameters, rules, shown, remark)
    with META:
        module = make()
    if not isinstance(module, nn.Module):
        raise TaskNotFoundError(f"{name!r} made {type(module).__name__}, neither a Task nor a module")
    found, remark = _counted(module, name), f"{UNKNOWN}: a module alone does not say what a batch is, a task does"
    return Measured(found, found.parameters, allowed(module, NO_RULES), NO_RULES, remark)


def allowed(module: nn.Module, rules: ParallelRules) -> tuple[TaskRule, ...]:
    """What `parallelism.taskRules` may name for a model: an `nn.Sequential` is cut into stages without any rules."""
    found = {*rules.allowed, *((TaskRule.PIPELINE,) if isinstance(module, nn.Sequential) else ())}
    return tuple(rule for rule in TaskRule if rule in found)


def kept_bytes(task: Task, module: nn.Module, samples: int) -> int:
    """Bytes that a forward pass over so many samples keeps for the backward pass, beside parameters and buffers."""
    batch = mapped(task.collate([task.dataset[n] for n in range(samples)]), lambda tensor: tensor.to(META))
    known = {storage(tensor) for tensor in (*module.parameters(), *module.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if storage(tensor) not in known:
            # the reference keeps the address from being used again
            kept[storage(tensor)] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        task.loss(module, batch)
    return sum(memory.nbytes() for memory in kept.values())


def _counted(module: nn.Module, name: str) -> MeasuredModel:
    """Shared parameters count once, as do buffers."""
    parameters = list(module.parameters())
    if not parameters:
        raise TaskNotFoundError(f"{name!r}: the module has no parameters")
    return MeasuredModel(
        name=name,
        parameters=sum(parameter.numel() for parameter in parameters),
        trainable_parameters=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in module.buffers()),
    )


def _with_activations(model: MeasuredModel, task: Task, module: nn.Module) -> tuple[MeasuredModel, str]:
    """The difference of two samples and one: what does not grow with the batch is not the batch's."""
    try:
        each = kept_bytes(task, module, 2) - kept_bytes(task, module, 1)
    except (NotImplementedError, RuntimeError, IndexError) as error:
        # operations that look at values cannot run without them
        return model, f"{UNKNOWN}: {type(error).__name__}: {str(error).splitlines()[0]}"
    return model.replace(activation_bytes_per_sample=max(0, each)), ""


def _function(name: str) -> Callable[[], Any] | None:
    """The function when it takes no arguments; None for what must be a task."""
    module_name, _, function_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), function_name, None)
    except (ModuleNotFoundError, ValueError):
        return None
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    if not inspect.isfunction(found) or inspect.signature(found).parameters:
        return None
    return found


def _in_a_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        # its own words take three lines each, and the last one names a web page
        faults = [f"{'.'.join(map(str, one['loc']))}={one['input']!r}: {one['msg'].lower()}" for one in error.errors()]
        return f"{error.title}: {'; '.join(faults)}"
    return " ".join(f"{type(error).__name__}: {error}".split())


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    name, args = arguments[0], dict(pair.partition("=")[::2] for pair in arguments[1:])
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = measure(name, args)
    except (TaskNotFoundError, InvalidInputError) as error:
        sys.stderr.write(f"{error}\n")
        return BAD_NAME
    except Exception as error:  # noqa: BLE001 - whatever the code raises, its last line is what people are told
        sys.stderr.write(f"{traceback.format_exc()}{_in_a_line(error)}\n")
        return 1
    sys.stdout.write(json.dumps({**found._asdict(), "model": found.model.wire(), "found": found.found.wire()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
