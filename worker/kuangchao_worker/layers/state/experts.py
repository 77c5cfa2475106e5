"""Leaves of a model's experts those of this rank, under the names that they have in the whole.

Which rank has which is a rule (`share_of`); how tokens reach them is not state's.
"""

from torch import nn

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.rules import ParallelRules
from kuangchao_worker.layers.state.chain import matching
from kuangchao_worker.parallel.experts import Elsewhere, share_of

FIELD = "task.rules.experts"
COPIES, PARTS = "expertData", "expert"
"""Axes of the mesh of experts: ranks that have the same ones, and ranks that divide those of a layer."""


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


def keep_own(module: nn.Module, rules: ParallelRules, rank: int, size: int) -> tuple[tuple[str, ...], ...]:
    """Put a stand-in in the place of each expert that rank `rank` of `size` has not; names of what stays, by layer."""
    layers = [name for pattern in rules.experts for name in matching(module, pattern)]
    kept = []
    for name in layers:
        experts = module.get_submodule(name)
        count = sum(1 for _ in experts.children())
        own = share_of(count, rank, size)
        for number in set(range(count)).difference(own):
            experts.add_module(str(number), Elsewhere())
        kept.append(tuple(f"{name}.{number}" for number in own))
    return tuple(kept)
