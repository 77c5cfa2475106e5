"""Updates whose gradients are clipped, or of a loss that is scaled for fp16: the same whatever the plan."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kuangchao_contracts.plan import ParallelPlan, Precision, Sharding
from kuangchao_worker.tasks import Task
from tests.local.gang import Gang
from tests.local.test_parity import MOE, assert_same
from tests.local.training import Job, committed, split, train

CLIP = 0.5
FULL = {"sharding": Sharding.FULL}
LAYERED = {"tensor": 2, "pipeline": 2, "data": 2, "sequence": True, "accumulation": 2, **FULL}
CLIPPED = {
    "data": (split(data=2), None),
    "all of it": (split(**LAYERED), None),
    "experts": (split(tensor=2, data=2, sequence=True, expert=2, **FULL), MOE),
}


@pytest.mark.parametrize(("plan", "task"), CLIPPED.values(), ids=CLIPPED)
def test_the_norm_of_the_whole_model_is_clipped(gang: Gang, plan: ParallelPlan, task: str | None) -> None:
    named = {} if task is None else {"task": task}
    found, expected, free = (
        train(gang, Job(one, clip_norm=clip, **named))  # type: ignore[arg-type]
        for one, clip in ((plan, CLIP), (split(), CLIP), (split(), None))
    )
    assert min(expected.norms) > CLIP, "told before clipping"
    assert expected.norms[-1] != free.norms[-1]
    assert_same(found, expected, 1e-9)


@dataclass(frozen=True)
class Loud(Job):
    """A job whose loss, scaled as at first, is too large for fp16 in its first steps."""

    def made(self) -> Task:
        quiet = super().made()
        return replace(quiet, loss=lambda module, batch: quiet.loss(module, batch) * 32)


SCALING = ("skippedSteps", "lossScale")
SCALED = {"data": split(data=2), "all of it": split(**LAYERED)}


@pytest.mark.parametrize("plan", SCALED.values(), ids=SCALED)
def test_fp16_skips_steps_on_all_ranks_and_goes_on_with_its_scale(
    gang: Gang, tmp_path: Path, plan: ParallelPlan
) -> None:
    common = {"plan": plan, "double": False, "precision": Precision.FP16, "folder": tmp_path}
    job = Loud(**common, every=6, steps=9)
    found = train(gang, job)
    skipped = [step for step, norm in enumerate(found.norms, 1) if not math.isfinite(norm)]
    assert skipped[0] == 1 and len(skipped) < 6
    assert found.metrics["skippedSteps"] == str(len(skipped))
    assert float(found.metrics["lossScale"]) == 2.0 ** (16 - len(skipped))
    assert found.losses[-1] < found.losses[0]
    resumed = train(gang, Loud(**common, steps=9, restore=committed(job, 6)))
    # an fp16 product of a CPU is not the same to the bit wherever its operands are in memory
    assert resumed.losses == pytest.approx(found.losses[6:], rel=1e-2)
    assert [resumed.metrics[name] for name in SCALING] == [found.metrics[name] for name in SCALING]
