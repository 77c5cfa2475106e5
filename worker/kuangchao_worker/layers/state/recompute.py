"""Recomputes activations in the backward pass instead of keeping them, by torch's own means. Decides nothing.

Only the links of the chain that repeat are recomputed: what they are is in the rules, how much in the plan. Names and
structure of the model stay, so nothing else needs to know. Random numbers are drawn again from the same state.
"""

from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Recompute
from kuangchao_contracts.rules import ParallelRules
from kuangchao_worker.layers.state.chain import repeated
from kuangchao_worker.parallel.naming import distinct

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
_ATEN: Final = torch.ops.aten
PRODUCTS: Final = (_ATEN.mm.default, _ATEN.addmm.default)
FUSED_ATTENTION: Final = (
    _ATEN._scaled_dot_product_flash_attention.default,  # noqa: SLF001 - names of torch's operators
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001 - as above
    _ATEN._scaled_dot_product_efficient_attention.default,  # noqa: SLF001 - as above
    _ATEN._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001 - as above
)
# Marks for a profiler: FSDP sets others, and more of them, where it gathers parameters for a backward pass. No results.
SAC_IGNORED_OPS.update(
    (
        torch.ops.profiler._record_function_enter_new.default,  # noqa: SLF001 - names of torch's operators
        torch.ops.profiler._record_function_exit._RecordFunction,  # noqa: SLF001 - as above
    )
)


def recompute(module: nn.Module, rules: ParallelRules, kind: Recompute) -> None:
    """Change the module in place, before it is split.

    Raises InvalidInputError where no chain says what repeats, and for links that keep running statistics (batch norm):
    a second forward pass would count each batch twice.
    """
    if kind is Recompute.NONE:
        return
    links = repeated(module, rules)
    if not links:
        raise InvalidInputError("task.rules.chain", (), f"is empty, and the plan has recompute {kind.value}", "none")
    for name in distinct(module, links):
        link = module.get_submodule(name)
        counting = [f"{name}.{own}".rstrip(".") for own, part in link.named_modules() if _counts(part)]
        if counting:
            why = f"would count each batch twice in the running statistics of {counting[0]}"
            raise InvalidInputError("plan.recompute", kind.value, why, Recompute.NONE.value)
        if kind is Recompute.SELECTIVE:
            checkpoint(link, context_fn=selective)
        else:
            checkpoint(link)


def _counts(part: nn.Module) -> bool:
    """Whether a forward pass changes it: torch's norms say so by this attribute."""
    return part.training and bool(getattr(part, "track_running_stats", False))


def selective() -> Contexts:
    """Contexts of a link's forward pass and of its recomputation, under `Keep`."""
    contexts: Contexts = create_selective_checkpoint_contexts(Keep())  # type: ignore[no-untyped-call]  # torch
    return contexts


class Keep:
    """torchtitan's "selective op" policy: every other matrix product of a link is kept, and fused attention.

    Attention that drops out is not kept: what is kept draws no random numbers when the link is recomputed, and what
    follows it would draw others than in the forward pass.
    """

    def __init__(self) -> None:
        self._seen = {False: 0, True: 0}

    def __call__(
        self, context: SelectiveCheckpointContext, operator: Any, *args: Any, **named: Any
    ) -> CheckpointPolicy:
        """Whether the output of an operator of torch is kept."""
        kept = operator in FUSED_ATTENTION and not _draws(operator, args, named)
        if operator in PRODUCTS:
            kept = self._seen[context.is_recompute] % 2 == 0
            self._seen[context.is_recompute] += 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _draws(operator: Any, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    names = [argument.name for argument in operator._schema.arguments]  # noqa: SLF001 - its only description
    given = dict(zip(names, args, strict=False)) | named
    return float(given.get("dropout_p", 0.0)) > 0
