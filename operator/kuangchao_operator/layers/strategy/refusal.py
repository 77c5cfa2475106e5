"""The one place where a refusal is made: whatever it quotes is cut to what an Infeasible can say. Pure.

Values come from users, who may pin a list of 16,384 numbers; a refusal must never fail for what it refuses.
"""

from typing import Final, Literal

from kuangchao_contracts.plan import Infeasible, RejectedAxis, StageMemory

MOST_SHORT: Final = 256
MOST_TEXT: Final = 1024


def refused(
    reason: Literal["Infeasible", "ContradictoryPlan", "InvalidSpec"],
    field: str,
    message: str,
    *,
    value: str | None = None,
    nearest: str | None = None,
    memory: tuple[StageMemory, ...] = (),
    rejected: tuple[RejectedAxis, ...] = (),
) -> Infeasible:
    """A refusal of a field; `nearest` is None where no value would be legal."""
    return Infeasible(
        reason=reason,
        field=field,
        value=None if value is None else value[:MOST_SHORT],
        nearest=None if nearest is None else nearest[:MOST_SHORT],
        message=message[:MOST_TEXT],
        memory=memory,
        rejected=rejected,
    )
