"""The norm of gradients is right to six digits and more however it is added up, and whatever the tensors look like."""

import pytest
import torch

from kuangchao_worker.layers.state.norms import ROW, sum_of_squares

SHAPES = {
    "a few elements": [torch.arange(5.0)],
    "rows and a rest": [torch.linspace(-1, 1, 3 * ROW + 7)],
    "a matrix, transposed": [torch.linspace(0, 2, 300 * 70).view(300, 70).t()],
    "a channel-last kernel": [torch.linspace(0, 2, 4_800).view(4, 12, 10, 10).to(memory_format=torch.channels_last)],
    "every second element": [torch.linspace(0, 2, 4 * ROW)[::2]],
    "one number, nothing, and more": [torch.tensor(3.0), torch.zeros(0), torch.ones(2, ROW)],
    "several kinds": [torch.ones(ROW, dtype=torch.bfloat16), torch.full((9,), 1e-3, dtype=torch.float64)],
    "large and small": [torch.full((64 * ROW,), 1e3), torch.full((64 * ROW,), 1e-3)],
    "none": [],
}


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "in rows"])
@pytest.mark.parametrize("pieces", SHAPES.values(), ids=SHAPES)
def test_squares_are_those_of_fp64(pieces: list[torch.Tensor], exact: bool) -> None:
    found = sum_of_squares(pieces, exact=exact)
    assert found.dtype is torch.float64 and found.shape == ()
    expected = sum(float(piece.double().square().sum()) for piece in pieces)
    assert float(found) == pytest.approx(expected, rel=1e-12 if exact else 5e-7)


def test_a_large_tensor_is_no_less_right_than_a_small_one() -> None:
    piece = torch.randn(1 << 21, generator=torch.Generator().manual_seed(0))
    expected = float(piece.double().square().sum())
    assert float(torch.linalg.vector_norm(piece)) ** 2 != pytest.approx(expected, rel=1e-7), "fp32 alone is not enough"
    assert float(sum_of_squares([piece], exact=False)) == pytest.approx(expected, rel=1e-8)


def test_what_is_no_number_stays_none() -> None:
    for bad in (float("nan"), float("inf")):
        for size in (3, 2 * ROW):
            found = sum_of_squares([torch.ones(4), torch.full((size,), bad)], exact=False)
            assert not torch.isfinite(found)
