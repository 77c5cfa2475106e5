"""What trainers log is reported by legal names, and whatever is no number is passed over."""

from typing import Any

import pytest
import torch

from kuangchao_worker.integrations.figures import figures
from kuangchao_worker.reports import Report


@pytest.mark.parametrize(
    ("logged", "told"),
    [
        ({"loss": "3.5", "eval/f1": 1}, {"loss": 3.5, "eval/f1": 1.0}),
        ({"val loss (%)": torch.tensor(0.5)}, {"val_loss____": 0.5}),
        ({"note": "good", "done": True, "grid": torch.zeros(2), "none": None}, {}),
        ({"step": 3, "total": 4, "3": 1, "": 1}, {}),
        ({"_x" * 60: 1}, {("x_" * 60)[:48]: 1.0}),
    ],
)
def test_figures(logged: dict[str, Any], told: dict[str, float]) -> None:
    found = figures(logged)
    assert found == told
    Report({}).metrics(**found)  # raises for what cannot be reported
