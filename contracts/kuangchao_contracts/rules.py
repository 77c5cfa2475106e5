"""How a model may be split over ranks, said by whoever wrote it. Plain data; the state layer carries it out."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from kuangchao_contracts.base import Contract

Pattern = Annotated[str, Field(min_length=1, max_length=256)]
Dimension = Annotated[int, Field(ge=0, le=16)]


class TaskRule(StrEnum):
    """Ways to split a model for which its task must bring rules. What is not here needs none: any module takes it."""

    TENSOR = "tensor"
    SEQUENCE = "sequence"
    PIPELINE = "pipeline"
    CONTEXT = "context"
    EXPERT = "expert"


class TensorStyle(StrEnum):
    """What tensor parallelism does to a module. "Split" is over the ranks of a tensor group."""

    COLUMNS = "columns"
    """Linear: output features split; what follows works on its own part (a `rows` ends that)."""
    ROWS = "rows"
    """Linear: input features split, results added up over the ranks."""
    EMBEDDING = "embedding"
    """Embedding: rows of the vocabulary split."""
    HEAD = "head"
    """Linear: output features split and joined again, as the loss needs all."""
    WHOLE = "whole"
    """Takes tokens whole where sequence parallelism has split them: attention, ffn."""
    SEQUENCE = "sequence"
    """Works on each token alone, so on a part of the tokens under sequence parallelism: norms; router and experts."""


OF_SEQUENCE: Final = frozenset({TensorStyle.WHOLE, TensorStyle.SEQUENCE})
"""Styles that say where tokens are split and where they are needed whole."""


class ParallelRules(Contract):
    """Names are those of `named_modules()`; `*` stands for one part of a name. Empty: not split that way."""

    chain: Annotated[tuple[Pattern, ...], Field(max_length=64)] = ()
    """Modules of which each takes what the one before it gives, in order; `blocks.*` are all members of `blocks`.
    Together they are the whole model. Where pipelines may be cut, and units of sharded data."""
    tensor: Annotated[dict[Pattern, TensorStyle], Field(max_length=64)] = {}
    tokens: Annotated[dict[Pattern, Dimension], Field(max_length=64)] = {}
    """Tensors of a batch that have a dimension of tokens, by key or place ("0"), with that dimension. Says as well that
    the model takes each token alone but for `kuangchao_worker.parallel`, and that the loss is the mean over all tokens,
    each with its target beside it: one that shifts targets itself, or leaves tokens out, comes out wrong unnoticed."""

    experts: Annotated[tuple[Pattern, ...], Field(max_length=64)] = ()
    """Lists of experts (`nn.ModuleList`), each reached through `kuangchao_worker.parallel.mixture` alone."""

    @property
    def allowed(self) -> tuple[TaskRule, ...]:
        """What these rules are enough for. An `nn.Sequential` has its pipeline without any."""
        styles = set(self.tensor.values())
        found = {
            TaskRule.TENSOR: bool(styles),
            TaskRule.SEQUENCE: not styles.isdisjoint(OF_SEQUENCE),
            TaskRule.PIPELINE: bool(self.chain),
            TaskRule.CONTEXT: bool(self.tokens),
            TaskRule.EXPERT: bool(self.experts),
        }
        return tuple(rule for rule, given in found.items() if given)
