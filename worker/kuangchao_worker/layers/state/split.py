"""Splits a module in place over a mesh, by torch's own means: DTensor for tensor parallelism, FSDP2 over data.

Decides nothing: rules and plan say what is split, and the mesh was built elsewhere.
"""

from collections.abc import Collection, Iterable, Sequence

from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import ParallelPlan, Sharding
from kuangchao_contracts.rules import ParallelRules, TensorStyle
from kuangchao_worker.layers.state.experts import OwnTokens, inside, lists_of, mixtures_of
from kuangchao_worker.parallel.dimensions import DATA, REPLICATE, SHARD
from kuangchao_worker.parallel.naming import matching, unknown

TOKENS = 1
"""Dimension of activations (batch, tokens, features) that sequence parallelism splits."""


def check_rules(module: nn.Module, rules: ParallelRules) -> None:
    """Raise InvalidInputError for a tensor rule that means no module: what it was to split would stay whole."""
    for pattern in rules.tensor:
        if not any(matching(module, pattern)):
            raise InvalidInputError("task.rules.tensor", pattern, unknown(module))


def check_held(module: nn.Module, rules: ParallelRules, *, sequence: bool) -> None:
    """Raise InvalidInputError for a style of a module that torch cannot give it: one that is no linear layer or table,
    or computes its weight from other parameters, as weight norm and parametrizations do.
    """
    mixtures = mixtures_of(module, rules)
    beside = (*lists_of(module, rules), *mixtures)
    for pattern, style in rules.tensor.items():
        for name in matching(module, pattern):
            part = module.get_submodule(name)
            below = next((own for own, _ in part.named_parameters() if "." in own), None)
            if style is TensorStyle.WHOLE or name in mixtures or inside(name, beside):
                continue
            if style is TensorStyle.SEQUENCE:
                if sequence and below is not None:
                    why = f"is told {style.value} and holds {below} in a module below, which torch does not replicate"
                    raise InvalidInputError("task.rules.tensor", name, why, f"{name}.{below.rpartition('.')[0]}")
                continue
            if not isinstance(part, nn.Linear | nn.Embedding):
                why = f"is told {style.value} and is a {type(part).__name__}; that divides Linear and Embedding"
                raise InvalidInputError("task.rules.tensor", name, why, "no style")
            if below is not None or "weight" not in dict(part.named_parameters(recurse=False)):
                own = below or next((own for own, _ in part.named_parameters()), "nothing")
                why = f"is told {style.value} and computes its weight from {own}, of which a rank would need the whole"
                raise InvalidInputError("task.rules.tensor", name, why, "no style")


def check_divided(rules: ParallelRules) -> None:
    """Raise InvalidInputError where nothing divides the tokens before the first module that takes a part of them: each
    tensor rank would take all tokens for its part, and the model see them several times.
    """
    if not rules.chain or TensorStyle.EMBEDDING in rules.tensor.values():
        return
    first = rules.chain[0]
    if not any(f"{name}.".startswith(f"{first}.") and s is TensorStyle.ROWS for name, s in rules.tensor.items()):
        why = "has no style embedding in it, nor rows, and the plan splits the tokens that it gives"
        raise InvalidInputError("task.rules.tensor", first, why)


def check_kinds(module: nn.Module, links: Iterable[str]) -> None:
    """Raise InvalidInputError for parameters that FSDP2 does not take: without dimensions, or of several types in what
    it gathers at a time, a link or else the model.
    """
    for name, parameter in module.named_parameters():
        if parameter.dim() == 0:
            why = "is a parameter without dimensions, which data parallelism cannot divide in a split model"
            raise InvalidInputError("task.model", name, why, "shape (1,)")
    for link in (*links,) or ("",):
        trained = module.get_submodule(link).named_parameters(prefix=link)
        first = {parameter.dtype: name for name, parameter in trained if parameter.requires_grad}
        if len(first) > 1:
            found = ", ".join(f"{name} is {str(kind).removeprefix('torch.')}" for kind, name in first.items())
            why = f"trains parameters of several types ({found}), and sharded data takes one at a time"
            raise InvalidInputError("task.model", link or "the model", why)


def split_tensor(module: nn.Module, mesh: DeviceMesh, rules: ParallelRules, *, sequence: bool) -> None:
    """Split the modules that the rules name over a mesh of one axis.

    Raises InvalidInputError without rules, and for one of a module whose weights another module has too.
    """
    if not rules.tensor:
        raise InvalidInputError("task.rules.tensor", {}, f"is empty, and the plan splits over {mesh.size()} ranks")
    outside: Placement = Shard(TOKENS) if sequence else Replicate()
    styles: dict[str, ParallelStyle] = {}
    for pattern, style in rules.tensor.items():
        made = _style(style, outside)
        if made is not None:
            styles |= dict.fromkeys(matching(module, pattern), made)
    if sequence:
        styles |= dict.fromkeys(mixtures_of(module, rules), OwnTokens(TOKENS))
    lists = lists_of(module, rules)
    styles = {name: made for name, made in styles.items() if not inside(name, lists)}
    check_untied(module, [name for name, made in styles.items() if not isinstance(made, PrepareModuleInput)])
    parallelize_module(module, mesh, styles)


def check_untied(module: nn.Module, names: Collection[str]) -> None:
    """Raise InvalidInputError where a parameter of these modules is another module's as well.

    What splits a module gives it parameters of its own, so both would go on apart, and nobody would tell.
    """
    holders: dict[int, list[str]] = {}
    for name, part in module.named_modules():
        for own, parameter in part.named_parameters(recurse=False):
            holders.setdefault(id(parameter), []).append(f"{name}.{own}")
    for shared in holders.values():
        split = [held for held in shared if any(held.startswith(f"{name}.") for name in names)]
        if split and len(shared) > 1:
            others = ", ".join(sorted({*shared} - {split[0]}))
            why = f"is {others} as well: split, each would train a copy of its own"
            raise InvalidInputError("task.rules.tensor", split[0], why)


def _style(style: TensorStyle, outside: Placement) -> ParallelStyle | None:
    """torch's style; `outside` is how activations lie between the regions that the styles bound."""
    sequence = outside.is_shard()
    match style:
        case TensorStyle.COLUMNS:
            return ColwiseParallel()
        case TensorStyle.ROWS:
            return RowwiseParallel(output_layouts=outside)
        case TensorStyle.EMBEDDING:
            return RowwiseParallel(input_layouts=Replicate(), output_layouts=outside)
        case TensorStyle.HEAD:
            return ColwiseParallel(input_layouts=outside, output_layouts=Replicate())
        case TensorStyle.WHOLE:
            return PrepareModuleInput(input_layouts=outside, desired_input_layouts=Replicate()) if sequence else None
        case TensorStyle.SEQUENCE:
            return SequenceParallel() if sequence else None


def split_data(module: nn.Module, mesh: DeviceMesh, units: Sequence[nn.Module], plan: ParallelPlan) -> None:
    """Shard or replicate the parameters over the data ranks, unit by unit, and what is left with the module itself.

    Where what belongs to parameters is sharded, and not these (ZeRO stages 1 and 2), each rank updates its shard, and
    parameters are gathered once a step and stay whole through it.
    """
    axes = mesh.mesh_dim_names or ()
    over = [axis for axis in (REPLICATE, SHARD, DATA) if axis in axes]
    if not over:
        return
    for unit in (*units, module):
        divide(unit, mesh[tuple(over)], plan, shard=plan.sharding is not Sharding.NONE and plan.shard_ranks != 1)


def divide(unit: nn.Module | list[nn.Module], mesh: DeviceMesh, plan: ParallelPlan, *, shard: bool) -> None:
    """Shard or replicate what of a unit is not yet over the ranks of a mesh; several modules are one unit."""
    for part in unit if isinstance(unit, list) else [unit]:
        for parameter in part.parameters():
            # FSDP2 takes no other, as a transpose or channels last is; values and names are the same
            if not (isinstance(parameter, DTensor) or parameter.is_contiguous()):
                parameter.data = parameter.data.contiguous()
    if not shard:
        replicate(unit, mesh=mesh)
    else:
        # a stage of a pipeline stays whole from its first micro-batch to its last: its weights' gradients may come
        # long after its backward pass, and torch finds no parameters in a module that is in pieces by then
        again = plan.sharding is Sharding.FULL and plan.pipeline == 1
        fully_shard(unit, mesh=mesh, reshard_after_forward=None if again else False)


def schedule_reduction(module: nn.Module, sharding: Sharding, *, last: bool) -> None:
    """Say what FSDP2 does in the backward pass of the micro-batch that follows, which may be the step's last.

    For FSDP2 each one is the last: between others it would remember the order of modules, and gather one too many.

    Gradients that are sharded alone are reduced with each micro-batch, or they would be whole between them; what
    replicates them waits for the last.
    """
    if not isinstance(module, FSDPModule):
        return
    module.set_requires_gradient_sync(last or sharding is Sharding.GRADIENTS)
    module.set_requires_all_reduce(last)
    if sharding in (Sharding.OPTIMIZER, Sharding.GRADIENTS):
        module.set_reshard_after_backward(last)
