"""The modules of a model that follow one another, as its rules name them, and what a pipeline stage keeps of them."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import nn

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_contracts.rules import ParallelRules
from kuangchao_worker.layers.state import mixing
from kuangchao_worker.parallel.naming import children, distinct, named, unknown

FIELD = "task.rules.chain"


def repeated(module: nn.Module, rules: ParallelRules) -> tuple[str, ...]:
    """Links that count as layers: those that one rule names together, or else all."""
    layers = [name for pattern in rules.chain if "*" in pattern for name in named(module, pattern)]
    return tuple(layers) or chain(module, rules)


def chain(module: nn.Module, rules: ParallelRules) -> tuple[str, ...]:
    """Names of the links in the order of their calls, so one module may be several; empty where the rules give none and
    the model is not an `nn.Sequential`.

    Raises InvalidInputError for a rule that means no module, and where parameters are in no link.
    """
    if not rules.chain:
        return tuple(name for name, _ in children(module)) if isinstance(module, nn.Sequential) else ()
    names = []
    for pattern in rules.chain:
        found = list(named(module, pattern))
        if not found:
            raise InvalidInputError(FIELD, pattern, unknown(module))
        names += found
    held = (*module.named_parameters(), *module.named_buffers())
    loose = [name for name, _ in held if not any(name.startswith(f"{link}.") for link in names)]
    if loose:
        raise InvalidInputError(FIELD, rules.chain, f"does not hold {loose[0]}")
    return tuple(names)


def units(module: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Links with parameters: what is gathered and reduced at a time where data is sharded."""
    found = [module.get_submodule(name) for name in distinct(module, names)]
    return [link for link in found if any(True for _ in link.parameters())]


def stages_on(plan: ParallelPlan, place: int) -> tuple[int, ...]:
    """Stages of the model that stand on the pipeline rank `place`, in order: around again and again, or there and back.

    As `torch.distributed.pipelining` lays them out (styles "loop" and "v").
    """
    ranks, back = plan.pipeline, plan.schedule is Schedule.ZERO_BUBBLE_V
    return tuple(
        chunk * ranks + (ranks - 1 - place if back and chunk % 2 else place) for chunk in range(plan.virtual_stages)
    )


def stage_links(module: nn.Module, rules: ParallelRules, plan: ParallelPlan, stage: int) -> tuple[str, ...]:
    """Links of a stage of the model, of which a pipeline rank may have several: its layers, and what comes before the
    first and after the last of all.

    Raises InvalidInputError when the layers cannot be cut so.
    """
    links, layers, count = chain(module, rules), repeated(module, rules), plan.pipeline * plan.virtual_stages
    if not links:
        why = f"{FIELD} is empty, and the model shows no modules that it calls one after the other alone"
        raise InvalidInputError("plan.pipeline", plan.pipeline, why, 1)
    sizes = plan.stage_layers or _even(len(layers), plan)
    if len(sizes) != count or sum(sizes) != len(layers):
        raise InvalidInputError("plan.stageLayers", sizes, f"is no cut of {len(layers)} layers in {count}")
    ends = [links.index(name) for name in layers] + [links.index(layers[-1]) + 1]
    # where a stage begins among the links: before the first layer of its own, the first stage with the first link
    starts = [0, *(ends[sum(sizes[:n])] for n in range(1, count)), len(links)]
    for n, (start, end) in enumerate(pairwise(starts)):
        if start == end:
            raise InvalidInputError("plan.stageLayers", sizes, f"leaves nothing for stage {n}")
    return links[starts[stage] : starts[stage + 1]]


def check_apart(module: nn.Module, stages: Iterable[Sequence[str]], each: str = "stage") -> None:
    """Raise InvalidInputError where a parameter is in two stages: each would train a copy of its own.

    Likewise for other runs of links, called `each` in the message.
    """
    seen: dict[int, str] = {}
    for links in stages:
        named = ((link, *one) for link in links for one in module.get_submodule(link).named_parameters())
        own = {id(parameter): f"{link}.{name}" for link, name, parameter in named}
        for one in own.keys() & seen.keys():
            raise InvalidInputError(FIELD, own[one], f"is the same parameter as {seen[one]}, in another {each}")
        seen |= own


def cut(module: nn.Module, rules: ParallelRules, plan: ParallelPlan) -> tuple[tuple[str, ...], ...]:
    """Links of every stage. Raises InvalidInputError when the layers cannot be cut so, and where a rank gets none with
    parameters."""
    every = tuple(stage_links(module, rules, plan, n) for n in range(plan.pipeline * plan.virtual_stages))
    check_apart(module, every)
    for place in range(plan.pipeline):
        if not units(module, [name for n in stages_on(plan, place) for name in every[n]]):
            why = f"leaves pipeline rank {place} without parameters"
            raise InvalidInputError("plan.stageLayers", plan.stage_layers, why)
    return every


def _even(layers: int, plan: ParallelPlan) -> tuple[int, ...]:
    count = plan.pipeline * plan.virtual_stages
    if layers % count:
        field, value = ("pipeline", count) if plan.virtual_stages == 1 else ("virtualStages", plan.virtual_stages)
        why = f"does not divide {layers} layers among {plan.pipeline}, and stageLayers is empty"
        base, rest = divmod(layers, count)
        cut = f"stageLayers {[base] * (count - rest) + [base + 1] * rest}"
        fewer = layers if plan.virtual_stages == 1 else max(1, layers // plan.pipeline)
        raise InvalidInputError(f"plan.{field}", value, why, cut if base else fewer)
    return (layers // count,) * count


class Part(nn.Module):
    """Some links of a model, under the names that they have in it."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        for name in names:
            above, _, own = name.rpartition(".")
            holder: nn.Module = self
            for part in filter(None, above.split(".")):
                if part not in dict(holder.named_children()):
                    holder.add_module(part, nn.Module())
                holder = holder.get_submodule(part)
            holder.add_module(own, module.get_submodule(name))


class Stage(Part):
    """Links that are called one after the other."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__(module, names)
        self._names = tuple(names)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the last link gives."""
        with mixing.named(self):
            for name in self._names:
                hidden = self.get_submodule(name)(hidden)
        return hidden
