"""Whether a setting can be, by every law of layouts, each with the nearest legal value. Pure.

The laws themselves are `division` and `staging`, which hold for whoever cuts a model, and `combination`, which holds
for plans of ours. Whether a layout is good is not said here.
"""

from kuangchao_operator.layers.strategy import combination, division, staging
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.sizes import Contradiction, Sizes, sizes_of

__all__ = ["Contradiction", "broken", "contradiction", "unsound"]


def contradiction(setting: Setting, devices: int | None = None) -> Contradiction | None:
    """The first law by which a setting cannot be cut; `devices` is how many there are, where that is given."""
    return broken(sizes_of(setting, devices))


def broken(sizes: Sizes) -> Contradiction | None:
    """The same for sizes, as far as they are known."""
    laws = (*division.LAWS, *staging.LAWS)
    return next((found for law in laws if (found := law(sizes)) is not None), None)


def unsound(sizes: Sizes, island: int | None = None, per_pod: int = 1) -> Contradiction | None:
    """The first law by which a layout that can be cut should not run.

    `island` is how many devices share fast links; None where tensor groups may go beyond it.
    """
    found = next((found for law in combination.LAWS if (found := law(sizes)) is not None), None)
    return found if found is not None or island is None else combination.island(sizes, island, per_pod)
