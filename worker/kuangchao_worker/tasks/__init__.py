"""What a user's task is, and how one is found by its name. User code knows no devices, links, stores or restarts.

A task is a function `name(args: dict[str, str]) -> Task` in any importable module, named `module:function`.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset, IterableDataset, default_collate

from kuangchao_contracts.errors import InvalidInputError, KuangchaoError
from kuangchao_contracts.plan import ModelDescriptor
from kuangchao_contracts.rules import ParallelRules

Batch = Any
Made = TypeVar("Made", Optimizer, LRScheduler)
NO_RULES: Final = ParallelRules()
BY_NUMBER: Final = "a torch.utils.data.Dataset with __len__ and __getitem__"


class TaskNotFoundError(KuangchaoError):
    """The name in spec.task does not lead to a task."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A training task.

    `model` is called more than once and must make the same model each time. `loss` gets the module as it must be called
    (it may be wrapped) and one micro-batch, and returns the mean loss.
    `dataset` has a length and gives sample i, always the same. `evaluate` gets the plain module on rank 0.
    """

    model: Callable[[], nn.Module]
    dataset: Dataset[Any]
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    scheduler: Callable[[Optimizer], LRScheduler] | None = None
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None
    collate: Callable[[list[Any]], Batch] = default_collate
    rules: ParallelRules = NO_RULES
    """How the model may be split; an `nn.Sequential` needs none to be cut between its members."""
    clip_norm: float | None = None
    """Gradients whose norm over the whole model is larger are scaled down to it; None: they are not."""
    describes: ModelDescriptor | None = None
    """The model in the planner's terms, for `kuangchao describe-model`; measured where it is not given."""

    def __post_init__(self) -> None:
        """Raise InvalidInputError for a part that cannot be what it is called."""
        for name in ("model", "loss", "optimizer", "collate"):
            if not callable(getattr(self, name)):
                raise InvalidInputError(f"task.{name}", type(getattr(self, name)).__name__, "is not callable")
        if isinstance(self.model, nn.Module):
            made = type(self.model).__name__
            raise InvalidInputError("task.model", made, "is a model and no function that makes one", "lambda: ...")
        if not hasattr(self.dataset, "__getitem__") or isinstance(self.dataset, IterableDataset):
            why = "gives no sample by its number, from which a restart finds the samples of any step again"
            raise InvalidInputError("task.dataset", type(self.dataset).__name__, why, BY_NUMBER)

    def made_optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """The optimizer of the parameters. Raises InvalidInputError for what cannot update from gradients alone."""
        return _steps_alone("task.optimizer", self.optimizer(parameters), Optimizer)

    def made_scheduler(self, optimizer: Optimizer) -> LRScheduler | None:
        """The schedule, if there is one. Raises InvalidInputError for one that must be told more than a step."""
        if self.scheduler is None:
            return None
        return _steps_alone("task.scheduler", self.scheduler(optimizer), LRScheduler)


def _steps_alone(field: str, made: Any, kind: type[Made]) -> Made:
    """What a task made, if its `step` takes nothing: no closure (LBFGS), no metric (ReduceLROnPlateau)."""
    name = type(made).__name__
    if not isinstance(made, kind):
        raise InvalidInputError(field, name, f"is no torch {kind.__name__}")
    parameters = list(inspect.signature(type(made).step).parameters.values())[1:]
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if needed:
        raise InvalidInputError(field, name, f"steps only with {', '.join(needed)}, which no step here has")
    return made


def load_task(name: str, args: Mapping[str, str]) -> Task:
    """The task of a name. Raises TaskNotFoundError saying which half of the name is wrong."""
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise
        where = "in this image (without a cluster: in the directory of `kuangchao run`)"
        if module_name.endswith(".py"):
            where += f"; a module is named without .py: {module_name.removesuffix('.py')}:{function_name}"
        raise TaskNotFoundError(f"spec.task={name!r}: there is no module {error.name!r} {where}") from None
    make = getattr(module, function_name, None)
    if not callable(make):
        own = {n for n, v in vars(module).items() if getattr(v, "__module__", None) == module_name and callable(v)}
        known = [n for n in own if not n.startswith("_")]
        raise TaskNotFoundError(
            f"spec.task={name!r}: module {module_name} has no function {function_name!r}; it has "
            f"{', '.join(sorted(known)[:8])}"
        )
    if not _takes_arguments(make):
        why = f"{function_name} must take one argument, the dict of spec.taskArgs"
        raise TaskNotFoundError(f"spec.task={name!r}: {why}")
    task = make(dict(args))
    if not isinstance(task, Task):
        raise TaskNotFoundError(f"spec.task={name!r}: the function returned {type(task).__name__}, not a Task")
    return task


def _takes_arguments(make: Callable[..., Any]) -> bool:
    try:
        inspect.signature(make).bind({})
    except TypeError:
        return False
    except ValueError:
        # of some callables nobody can tell
        return True
    return True
