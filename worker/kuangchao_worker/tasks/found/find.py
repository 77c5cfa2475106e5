"""The rules of a task that brings none: for tensor parallelism linear layers in pairs, attention, embeddings and a head
of a vocabulary; for pipelines the modules that follow one another.

What is found is what the model does in one forward pass on torch's meta device. A second pass, in which the layers that
were found give and take a part of their features, must do the same: code that counts on all of them is left whole.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn

from kuangchao_contracts.rules import ParallelRules, TensorStyle
from kuangchao_worker.parallel.naming import gathered, named
from kuangchao_worker.tasks import Task
from kuangchao_worker.tasks.found.parts import Styles, parted
from kuangchao_worker.tasks.found.passes import loss_of, made
from kuangchao_worker.tasks.found.traces import Calls, hooked, storage
from kuangchao_worker.tasks.found.watch import Region, Watch


class Found(NamedTuple):
    """What was found, and why not more."""

    rules: ParallelRules
    remark: str = ""


def missing_rules(task: Task, *, ranks: int = 0) -> Found:
    """Of the rules for tensor ranks and for pipelines those that a task leaves empty, and its model shows.

    Tensor rules are such as `ranks` can divide evenly; 0: some number of ranks.
    """
    own = task.rules
    if own.tensor and own.chain:
        return Found(ParallelRules())
    rules, remark = find_rules(task, ranks=ranks)
    tensor, chain = {} if own.tensor else rules.tensor, () if own.chain else rules.chain
    return Found(ParallelRules(tensor=tensor, chain=chain), remark)


def joined(own: ParallelRules, shown: ParallelRules) -> ParallelRules:
    """A task's own rules, and for what they leave empty those that its model shows."""
    return own.replace(tensor=own.tensor or shown.tensor, chain=own.chain or shown.chain)


def find_rules(task: Task, *, ranks: int = 0) -> Found:
    """Rules for a task that has none, tensor rules such as `ranks` of a tensor group divide evenly; 0: any number."""
    try:
        module = made(task)
        linears, tables = _linears(module), _tables(module)
        watch = Watch(module, linears)
        watch.hook()
        with Calls(module) as calls, watch:
            loss = loss_of(task, module)
        kept, remarks = _kept(task, watch, ranks)
        # of a model that is called more than once, or not whole, nobody knows the end
        ends = _ends(module, calls.last(), [*tables, *linears], {*kept, *watch.used}, ranks) if calls.model() else {}
    except Exception as error:  # noqa: BLE001 - code of the task, which met tensors without values
        return Found(ParallelRules(), f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    remark = "" if kept else "; ".join(dict.fromkeys(remarks)) or "it has no linear layers"
    return Found(ParallelRules(chain=_chain(module, calls.chain(loss)), tensor=gathered(module, kept | ends)), remark)


def _chain(module: nn.Module, names: list[str]) -> tuple[str, ...]:
    """The chain by patterns; an `nn.Sequential` has its own."""
    if isinstance(module, nn.Sequential):
        return ()
    patterns = tuple(gathered(module, dict.fromkeys(names, True)))
    meant = [name for pattern in patterns for name in named(module, pattern)]
    return patterns if meant == names else tuple(names)


def _kept(task: Task, watch: Watch, ranks: int) -> tuple[Styles, list[str]]:
    """Pairs that work on a part of their features, tried kind by kind: a kind is what the same patterns name."""
    chosen, remarks = _chosen(watch.regions(), ranks)
    kinds: dict[tuple[str, ...], list[Region]] = {}
    for region in chosen:
        # numbers apart, the layers of each block have the same names
        names = (".".join("*" if part.isdigit() else part for part in name.split(".")) for name in _styles([region]))
        kinds.setdefault(tuple(names), []).append(region)
    kept: list[Region] = []
    for regions in kinds.values():
        # with those before it, as code may look at two of them at once; some number of ranks may divide no two
        number = ranks or _least([*kept, *regions])
        tried = [*kept, *regions] if number > 1 else regions
        why = _differs(task, _styles(tried), watch, number if number > 1 else _least(regions))
        if why:
            remarks.append(f"{regions[0].columns[0]}: {why}")
        else:
            kept += regions
    return _styles(kept), remarks


def _chosen(regions: Iterable[Region], ranks: int) -> tuple[list[Region], list[str]]:
    """Regions that can be divided, first come first served, and why others cannot."""
    chosen: list[Region] = []
    remarks, taken = [], set[str]()
    for region in regions:
        why = region.lost or _unfit(region, taken, ranks)
        if why:
            remarks.append(f"{region.columns[0]}: {why}")
        else:
            chosen.append(region)
            taken |= {*region.columns, *region.rows}
    return chosen, remarks


def _unfit(region: Region, taken: set[str], ranks: int) -> str:
    if not region.rows:
        return "no linear layer takes what it gives"
    if not taken.isdisjoint((*region.columns, *region.rows)) or not {*region.columns}.isdisjoint(region.rows):
        return "a linear layer takes what it gives, and is taken already"
    parts = math.gcd(*region.parts)
    if parts == 1 or (ranks and parts % ranks):
        return f"{parts} parts cannot be divided among {ranks or 'several'} ranks"
    return ""


def _styles(regions: Iterable[Region]) -> Styles:
    found: Styles = {}
    for region in regions:
        found |= dict.fromkeys(region.columns, TensorStyle.COLUMNS) | dict.fromkeys(region.rows, TensorStyle.ROWS)
    return found


def _least(regions: Iterable[Region]) -> int:
    parts = math.gcd(*(parts for region in regions for parts in region.parts))
    return next((n for n in range(2, parts + 1) if parts % n == 0), 1)


def _differs(task: Task, styles: Styles, watch: Watch, ranks: int) -> str:
    """Why the model does something else where these layers give and take a part of their features; "" if it does not.

    Shapes written into a model fail here, and so do factors that are taken from the shapes at hand.
    """
    module = made(task)
    again = parted(module, styles, _linears(module), ranks)
    try:
        with again:
            loss_of(task, module)
    except Exception as error:  # noqa: BLE001 - whatever the model makes of smaller tensors
        return f"on a part of its features: {str(error).partition(chr(10))[0]}"
    divided = frozenset(name for name, style in styles.items() if style is TensorStyle.COLUMNS)
    expected, found = watch.steps(divided, ranks), again.steps()
    first, second = (
        [region for region in one.regions() if not divided.isdisjoint(region.columns)] for one in (watch, again)
    )
    # a single part cannot be told from a dimension that is there for its place alone
    if all(math.gcd(*region.parts) > ranks for region in first):
        lost = next((region.lost for region in second if region.lost), "")
        if lost or [(one.columns, one.rows) for one in first] != [(one.columns, one.rows) for one in second]:
            return f"on a part of its features: {lost or 'other layers take them'}"
    other = next((one.operator for one, two in zip(expected, found, strict=False) if one != two), "")
    return f"{other} depends on how many features there are" if expected != found else ""


def _linears(module: nn.Module) -> list[str]:
    """Plain linear layers, without hooks that change what they take or give, whose weights are theirs alone."""
    shared = _shared(module)
    return [
        name
        for name, part in module.named_modules()
        if name and type(part) is nn.Linear and name not in shared and not _changed(part)
    ]


def _tables(module: nn.Module) -> list[str]:
    """As `_linears`, of embeddings: those where nothing is special about a row."""
    shared = _shared(module)
    return [
        name
        for name, part in module.named_modules()
        if type(part) is nn.Embedding and name and name not in shared and not _changed(part)
        if part.padding_idx is None and part.max_norm is None and not (part.sparse or part.scale_grad_by_freq)
    ]


def _changed(part: nn.Module) -> bool:
    return hooked(part) or "forward" in vars(part)


def _shared(module: nn.Module) -> set[str]:
    """Modules with a parameter of which another one has some as well."""
    holders: dict[int, set[str]] = {}
    for name, part in module.named_modules():
        for parameter in part.parameters(recurse=False):
            holders.setdefault(storage(parameter), set()).add(name)
    return {name for names in holders.values() if len(names) > 1 for name in names}


def _ends(module: nn.Module, last: str, plain: list[str], taken: set[str], ranks: int) -> Styles:
    """Where a vocabulary begins and ends: tables and a last layer with no fewer rows than columns."""
    found: Styles = {}
    for name in (name for name in plain if name not in taken):
        part = module.get_submodule(name)
        if isinstance(part, nn.Embedding) and _wide(part.weight, ranks):
            found[name] = TensorStyle.EMBEDDING
        if isinstance(part, nn.Linear) and name == last and _wide(part.weight, ranks):
            found[name] = TensorStyle.HEAD
    return found


def _wide(weight: torch.Tensor, ranks: int) -> bool:
    rows, columns = weight.shape
    return rows >= columns and not (ranks and rows % ranks)
