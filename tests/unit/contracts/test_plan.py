"""Plans and their inputs as others read them."""

import pytest

from kuangchao_contracts.plan import Optimizer, Precision, TrainingSpec, known_to_older_workers

OLD_PRECISIONS = {"fp32", "bf16", "fp16"}
OLD_OPTIMIZERS = {"sgd", "momentum", "adam", "adamw"}


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("optimizer", Optimizer)
def test_workers_of_0_1_0_are_told_values_that_they_know(precision: Precision, optimizer: Optimizer) -> None:
    asked = TrainingSpec(precision=precision, optimizer=optimizer, steps=7)
    told = known_to_older_workers(asked)
    assert told.precision in OLD_PRECISIONS
    assert told.optimizer in OLD_OPTIMIZERS
    assert told == asked or {precision, optimizer} - OLD_PRECISIONS - OLD_OPTIMIZERS
    assert told.replace(precision=precision, optimizer=optimizer) == asked
