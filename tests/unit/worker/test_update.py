"""From gradients to an update: clipping and loss scaling against torch's own, and nothing that is no number."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from kuangchao_contracts.errors import NonFiniteGradientsError
from kuangchao_contracts.plan import Precision
from kuangchao_worker.layers.state.snapshots import digest
from kuangchao_worker.layers.state.update import LEAST_SCALE, LossScale, UpdateRule
from kuangchao_worker.rank.algorithm import TaskAlgorithm
from kuangchao_worker.rank.wiring import make_parameters
from kuangchao_worker.tasks import Task
from kuangchao_worker.tasks.mlp import mlp
from tests.unit.worker.fakegate import make_plan
from tests.unit.worker.parts import make_state, train

CPU, CLIP = torch.device("cpu"), 0.5
HUGE = 4
"""The step whose loss is too large for fp16."""


def task() -> Task:
    made = mlp({"dropout": "0"})
    return replace(made, loss=lambda module, batch: made.loss(module, batch[:2]) * batch[2])


def batch(step: int, huge: int = 0) -> tuple[torch.Tensor, ...]:
    inputs, targets = mlp({}).dataset[torch.arange(8) + 8 * step]
    return inputs, targets, torch.tensor(1e9 if step == huge else 1.0)


def ours(
    made: Task, precision: Precision, steps: int, huge: int = 0
) -> tuple[list[float], list[float], UpdateRule, nn.Module]:
    """Norms, scales after each step, the rule and the module."""
    store = make_parameters(made, CPU, 0, make_plan(1), precision)
    algorithm = TaskAlgorithm(made, store, device=CPU, accumulation=1, precision=precision)
    norms, scales = [], []
    for step in range(1, steps + 1):
        algorithm.micro_step(batch(step, huge), last=True)
        norms.append(store.apply())
        scales.append(store.rule.factor)
    return norms, scales, store.rule, store.module


def test_clipping_is_that_of_torch() -> None:
    norms, _, _, found = ours(replace(task(), clip_norm=CLIP), Precision.FP32, 5)
    torch.manual_seed(0)
    module = task().model()
    optimizer = task().optimizer(module.parameters())
    scheduler = task().scheduler(optimizer)  # type: ignore[misc]
    expected = []
    for step in range(1, 6):
        task().loss(module, batch(step)).backward()
        expected.append(float(nn.utils.clip_grad_norm_(module.parameters(), CLIP)))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    assert norms == pytest.approx(expected) and max(norms) > CLIP, "told before clipping"
    for mine, theirs in zip(found.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_fp16_trains_as_torchs_gradient_scaler_does_and_skips_the_same_steps() -> None:
    """Not to the bit: what an fp16 product of a CPU rounds depends on where in memory its operands are."""
    norms, scales, rule, found = ours(task(), Precision.FP16, 6, HUGE)
    torch.manual_seed(0)
    module = task().model()
    optimizer = task().optimizer(module.parameters())
    scheduler = task().scheduler(optimizer)  # type: ignore[misc]
    scaler, expected, skipped = torch.amp.GradScaler("cpu"), [], []
    for step in range(1, 7):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = task().loss(module, batch(step, HUGE))
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        expected.append(scaler.get_scale())
        if scaler.get_scale() < before:
            skipped.append(step)
        else:
            scheduler.step()
    assert skipped == [step for step, norm in enumerate(norms, 1) if not math.isfinite(norm)]
    assert HUGE in skipped and len(skipped) < len(norms)
    assert scales == expected
    assert rule.scale is not None and rule.scale.skipped == len(skipped)
    for mine, theirs in zip(found.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-3)


def test_a_scale_grows_and_falls_as_torchs_does() -> None:
    mine, scaler = LossScale(), torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))
    for step in range(1, 4_500):
        finite = step not in (3, 4, 700)
        mine.update(finite=finite)
        scaler._scale = torch._amp_update_scale_(
            scaler._scale, scaler._growth_tracker, torch.tensor(0.0 if finite else 1.0), 2.0, 0.5, 2_000
        )
        assert mine.value == float(scaler._scale)  # type: ignore[arg-type]
    assert mine.skipped == 3
    again = LossScale()
    again.load(mine.state())
    assert again == mine


def test_rank_and_step_of_what_is_no_number_are_named(tmp_path: Path) -> None:
    state = make_state(mlp({}), tmp_path)
    train(state, mlp({}), 1, 2)
    spoilt = replace(mlp({}), loss=lambda module, batch: mlp({}).loss(module, batch) * math.nan)
    with pytest.raises(NonFiniteGradientsError, match="rank 0, step 3: the gradient norm is nan"):
        train(state, spoilt, 3, 3)


def test_what_no_scale_can_help_ends_the_run() -> None:
    scale = LossScale(value=LEAST_SCALE * 2)
    scale.update(finite=False)
    with pytest.raises(NonFiniteGradientsError, match="even with a loss scale of 1"):
        scale.update(finite=False)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradients_that_are_no_numbers_are_not_applied(value: float) -> None:
    store = make_parameters(task(), CPU, 0, make_plan(1))
    before = digest(store.parameters())
    for parameter in store.module.parameters():
        parameter.grad = torch.full_like(parameter, value)
    with pytest.raises(NonFiniteGradientsError, match=f"norm is {value}"):
        store.apply()
    assert digest(store.parameters()) == before
