"""Leaves of a model's experts those of this rank, under the names that they have in the whole.

Which rank has which is a rule (`share_of`); how tokens reach them is not state's.
"""

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ParallelStyle

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_contracts.rules import ParallelRules, TensorStyle
from kuangchao_worker.parallel.dimensions import EXPERT, EXPERT_REPLICATE
from kuangchao_worker.parallel.experts import Elsewhere, share_of
from kuangchao_worker.parallel.naming import matching

FIELD = "task.rules.experts"
WHOLE = (EXPERT_REPLICATE,)
"""All axes of copies, where experts are not sharded though other states are."""


def check_experts(module: nn.Module, rules: ParallelRules, size: int) -> None:
    """Raise InvalidInputError for a rule that names no list of experts, or experts that `size` ranks cannot share."""
    for pattern in rules.experts:
        found = [module.get_submodule(name) for name in matching(module, pattern)]
        if not found or not all(isinstance(experts, nn.ModuleList) for experts in found):
            raise InvalidInputError(FIELD, pattern, "names no nn.ModuleList of the model")
        for experts in found:
            count = len(experts)  # type: ignore[arg-type]  # a ModuleList, as just said
            if count % size:
                raise InvalidInputError("plan.expert", size, f"does not divide the {count} experts of {pattern}", count)


def check_tokens(module: nn.Module, rules: ParallelRules) -> None:
    """Raise InvalidInputError for experts in no module that has a style for tokens divided over tensor ranks."""
    mixtures = mixtures_of(module, rules)
    for name in lists_of(module, rules):
        if not inside(name, mixtures):
            why = f"gives no module around {name} the style {TensorStyle.SEQUENCE.value}, and the plan splits tokens"
            raise InvalidInputError("task.rules.tensor", name, why)


def lists_of(module: nn.Module, rules: ParallelRules) -> tuple[str, ...]:
    """Names of the lists of experts."""
    return tuple(name for pattern in rules.experts for name in matching(module, pattern))


def mixtures_of(module: nn.Module, rules: ParallelRules) -> tuple[str, ...]:
    """Names of modules with experts in them that work on each token alone, as their style says."""
    patterns = (pattern for pattern, style in rules.tensor.items() if style is TensorStyle.SEQUENCE)
    lists = lists_of(module, rules)
    return tuple(
        name for pattern in patterns for name in matching(module, pattern) if any(inside(one, (name,)) for one in lists)
    )


def inside(name: str, modules: tuple[str, ...]) -> bool:
    """Whether a module or parameter is in one of these modules, or in what is in them."""
    return name.startswith(tuple(f"{module}." for module in modules))


def keep_own(module: nn.Module, rules: ParallelRules, rank: int, size: int) -> tuple[tuple[str, ...], ...]:
    """Put a stand-in in the place of each expert that rank `rank` of `size` has not; names of what stays, by layer."""
    kept = []
    for name in lists_of(module, rules):
        experts = module.get_submodule(name)
        count = sum(1 for _ in experts.children())
        own = share_of(count, rank, size)
        for number in set(range(count)).difference(own):
            experts.add_module(str(number), Elsewhere())
        kept.append(tuple(f"{name}.{number}" for number in own))
    return tuple(kept)


def copies_of(mesh: DeviceMesh) -> DeviceMesh:
    """Of the mesh of experts the ranks that have the same ones as this one."""
    return mesh[tuple(axis for axis in mesh.mesh_dim_names or () if axis != EXPERT)]


def spread(plan: ParallelPlan) -> float:
    """By what to divide an expert's gradient, averaged over its copies, to have that of the mean over all data ranks.

    It has met the tokens of all ranks that divide its layer. Where tensor ranks have other tokens each, their parts add
    up, but as copies they were averaged.
    """
    return plan.expert / (plan.tensor if plan.sequence else 1)


class OwnTokens(ParallelStyle):
    """Works on the tokens that this tensor rank has, with weights that all tensor ranks have whole.

    What goes in is divided by tokens along `dimension`, and so is what comes out; both are plain tensors. The gradients
    of the weights are each of a part of the tokens: who updates them adds them up over the ranks.
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self._divided = (Shard(dimension),)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        del device_mesh
        module.register_forward_pre_hook(self._own)
        return module

    def _own(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        del module
        return tuple(
            one.redistribute(placements=self._divided).to_local() if isinstance(one, DTensor) else one for one in given
        )
