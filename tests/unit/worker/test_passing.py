"""Whether ranks have gathered the links of a model in one order is told from sums of one number of each."""

import pytest

from kuangchao_contracts.errors import RanksDifferError
from kuangchao_worker.layers.state.passing import ORDERS, require_one_order


@pytest.mark.parametrize("orders", [[0], [ORDERS - 1] * 4096, [7] * 3])
def test_one_order_of_all_is_no_difference(orders: list[int]) -> None:
    require_one_order(float(sum(orders)), float(sum(n * n for n in orders)), len(orders))


@pytest.mark.parametrize("orders", [[1, 2], [ORDERS - 1] * 4095 + [ORDERS - 2], [5, 6, 7]])
def test_another_order_on_any_rank_is_told(orders: list[int]) -> None:
    with pytest.raises(RanksDifferError, match="in another order on some ranks"):
        require_one_order(float(sum(orders)), float(sum(n * n for n in orders)), len(orders))
