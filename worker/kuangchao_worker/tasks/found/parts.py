"""Tensor rules tried on a part of the features, as a rank would have them: what must stay the same, and does not."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from kuangchao_contracts.rules import ParallelRules, TensorStyle
from kuangchao_worker.parallel.naming import matching, named
from kuangchao_worker.tasks import Task
from kuangchao_worker.tasks.found.passes import loss_of, made
from kuangchao_worker.tasks.found.traces import Calls
from kuangchao_worker.tasks.found.watch import Watch

Styles = dict[str, TensorStyle]


class Fault(NamedTuple):
    """A layer whose features a model does not take in parts, and why."""

    layer: str
    why: str


def parted(module: nn.Module, styles: Styles, watched: Sequence[str], ranks: int) -> Watch:
    """What watches a module in which these layers give and take a part of their features."""
    watch = Watch(module, watched)
    columns, rows = (
        [module.get_submodule(name) for name, own in styles.items() if own is style]
        for style in (TensorStyle.COLUMNS, TensorStyle.ROWS)
    )
    # what these do to the tensors is done inside of the layers, as the watch sees it
    for layer in columns:
        layer.register_forward_hook(lambda _, __, output: output.narrow(-1, 0, output.shape[-1] // ranks))
    watch.hook()
    for layer in rows:
        layer.register_forward_pre_hook(lambda layer, given: _filled(layer, given, ranks))
    return watch


def fault_of(task: Task, ranks: int) -> Fault | None:
    """Where a task's own tensor rules make its model compute something else on so many ranks.

    Known are views and numbers that count on all features; what cannot be followed is believed. Raises whatever the
    task does where tensors have no values.
    """
    module = made(task)
    styles = _styles(module, task.rules)
    columns = [name for name, style in styles.items() if style is TensorStyle.COLUMNS]
    sizes = [part.out_features for part in map(module.get_submodule, columns) if isinstance(part, nn.Linear)]
    if not columns or any(size % ranks for size in sizes):
        return None
    watch = Watch(module, list(styles))
    watch.hook()
    with watch:
        loss_of(task, module)
    module = made(task)
    part, calls = parted(module, styles, list(styles), ranks), Calls(module)
    try:
        with calls, part:
            loss_of(task, module)
    except NotImplementedError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the model makes of smaller tensors
        said, where = str(error).partition("\n")[0], calls.running()
        return Fault(_nearest(where, columns), f"{where or 'the model'} does not take that: {said}")
    found = watch.fault(part, frozenset(columns))
    return Fault(*found) if found is not None else None


def _styles(module: nn.Module, rules: ParallelRules) -> Styles:
    """Linear layers that are divided by features, by name. Experts are not: ranks have whole ones."""
    lists = [name for pattern in rules.experts for name in named(module, pattern)]
    return {
        name: style
        for pattern, style in rules.tensor.items()
        if style in (TensorStyle.COLUMNS, TensorStyle.ROWS)
        for name in matching(module, pattern)
        if isinstance(module.get_submodule(name), nn.Linear)
        if not any(name.startswith(f"{experts}.") for experts in lists)
    }


def _nearest(running: str, layers: Sequence[str]) -> str:
    """Of layers in a model's order the first within the module that ran, or around it."""
    while running and not any(f"{name}.".startswith(f"{running}.") for name in layers):
        running = running.rpartition(".")[0]
    return next(name for name in layers if not running or f"{name}.".startswith(f"{running}."))


def _filled(layer: nn.Module, given: tuple[Any, ...], ranks: int) -> torch.Tensor:
    """What such a layer would take from all ranks."""
    (part,) = given
    features = layer.in_features
    if part.shape[-1] * ranks != features:
        raise ValueError(f"it takes {features} features from {ranks} ranks, and this one gives {part.shape[-1]}")
    whole: torch.Tensor = part.new_empty((*part.shape[:-1], features))
    return whole
