"""Whether a setting can be, by every law of layouts, each with the nearest legal value. Pure.

The laws themselves are `division` and `staging`, which hold for whoever cuts a model, and `combination`, which holds
for plans of ours. Whether a layout is good is not said here.
"""

from collections.abc import Callable, Iterator
from functools import partial

from kuangchao_operator.layers.strategy import combination, division, staging
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.nearest import Asked, mended
from kuangchao_operator.layers.strategy.sizes import Broken, Contradiction, Sizes, sizes_of
from kuangchao_operator.layers.strategy.values import changed, value, values

__all__ = ["Contradiction", "broken", "contradiction", "faults", "lawful", "unsound"]

LAWS = (*division.LAWS, *staging.LAWS)
Faults = Callable[[Sizes], Iterator[Broken]]


def contradiction(setting: Setting, devices: int | None = None) -> Contradiction | None:
    """The first law by which a setting cannot be cut; `devices` is how many there are, where that is given."""
    return broken(sizes_of(setting, devices))


def lawful(setting: Setting) -> bool:
    """Whether a setting can be cut: the same for those who need no words."""
    sizes = sizes_of(setting)
    return all(law(sizes) is None for law in LAWS)


def broken(sizes: Sizes) -> Contradiction | None:
    """The same for sizes, as far as they are known."""
    return _first(sizes, _cuts)


def unsound(sizes: Sizes, island: int | None = None, per_pod: int = 1) -> Contradiction | None:
    """The first law by which a layout that can be cut should not run.

    `island` is how many devices share fast links; None where tensor groups may go beyond it.
    """
    return _first(sizes, partial(faults, island=island, per_pod=per_pod))


def faults(sizes: Sizes, island: int | None = None, per_pod: int = 1) -> Iterator[Broken]:
    """Every law of layouts that is broken, without nearest values."""
    yield from _cuts(sizes)
    yield from (found for law in combination.LAWS if (found := law(sizes)) is not None)
    found = None if island is None else combination.island(sizes, island, per_pod)
    if found is not None:
        yield found


def _cuts(sizes: Sizes) -> Iterator[Broken]:
    return (found for law in LAWS if (found := law(sizes)) is not None)


def _first(sizes: Sizes, judge: Faults) -> Contradiction | None:
    found = next(judge(sizes), None)
    return None if found is None else mended(found, _asked(sizes, judge))


def _asked(sizes: Sizes, judge: Faults) -> Asked:
    """Values are tried on the sizes as they are, all others being kept."""
    return Asked(
        value=partial(value, sizes),
        values=partial(values, sizes),
        blamed=lambda field, other: (one.field for one in judge(changed(sizes, field, other))),
    )
