"""What a plan says of those that lost, and a refusal of what would fit."""

from typing import Any

import pytest

from kuangchao_contracts.fabric import Fabric
from kuangchao_contracts.plan import (
    DeviceShape,
    Infeasible,
    ParallelPlan,
    PlanRequest,
    Precision,
    Sharding,
    TransformerModel,
)
from kuangchao_contracts.rules import TaskRule
from kuangchao_operator.layers.strategy import runnable
from kuangchao_operator.layers.strategy.explain import render_plan
from kuangchao_operator.layers.strategy.runnable import NEUTRAL
from kuangchao_operator.layers.strategy.search.plans import setting_of
from kuangchao_operator.layers.strategy.shipped import knowledge, plan, replan
from kuangchao_operator.layers.strategy.validate import violation

GIB = 2**30
LLAMA_8B = TransformerModel(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
LLAMA_1B = TransformerModel(layers=16, hidden=2048, heads=32, kv_heads=8, ffn=8192, vocab=128256)
H100 = "NVIDIA H100 80GB HBM3"


def ask(
    model: TransformerModel = LLAMA_8B, devices: int = 8, *, gpu: str = H100, gib: int = 80, **changes: Any
) -> PlanRequest:
    shape = DeviceShape(kind="gpu", model=gpu, memory_bytes=gib * GIB, per_node=8, nodes=max(1, devices // 8))
    fields = {"whatIf": True, "perPod": min(devices, 8), "devices": devices, "shapes": [shape], "model": model}
    training = {"globalBatch": 16, "sequenceLength": 4096, "precision": Precision.BF16}
    return PlanRequest.model_validate({**fields, "training": training, **changes})


def made(request: PlanRequest) -> ParallelPlan:
    outcome = plan(request)
    assert outcome.plan is not None, outcome.infeasible
    return outcome.plan


def refused(request: PlanRequest) -> Infeasible:
    outcome = plan(request)
    assert outcome.infeasible is not None, outcome.plan
    return outcome.infeasible


def test_others_come_with_time_and_memory_and_what_makes_them_slower() -> None:
    best = made(ask())
    assert best.step is not None
    slower = [one for one in best.alternatives if "slower by" in one.reason]
    assert len(slower) >= 3
    assert all("step " in one.reason and " GiB of " in one.reason for one in slower)
    assert any(word in slower[-1].reason for word in ("tensor +", "computation +", "pipeline +", "data +", "context +"))


def test_every_axis_that_is_not_used_has_one_reason() -> None:
    best = made(ask(LLAMA_1B))
    reasons = {one.axis: one.reason for one in best.rejected}
    used = {"tensor": best.tensor, "pipeline": best.pipeline, "context": best.context, "expert": best.expert}
    assert {axis for axis, size in used.items() if size == 1} <= set(reasons) <= set(NEUTRAL)
    assert reasons["expert"] == "the model has no experts"
    assert reasons["recompute"].startswith("fits without")
    assert reasons["context"].startswith("sequence 4096 fits without; the best plan with it")
    assert "more a step" in reasons["context"]


def test_a_pinned_axis_is_said_to_be_pinned() -> None:
    reasons = {one.axis: one.reason for one in made(ask(parallelism={"tensor": 1})).rejected}
    assert reasons["tensor"] == "pinned to 1"


def test_what_mode_manual_takes_for_itself_is_not_said_to_be_pinned() -> None:
    reasons = {one.axis: one.reason for one in made(ask(parallelism={"mode": "Manual", "tensor": 8})).rejected}
    assert reasons["context"] == "not given, and mode Manual leaves it out then"
    assert reasons["stageLayers"] == "there is one pipeline stage"
    assert not any("pinned" in reason for reason in reasons.values())
    why = refused(ask(gib=24, parallelism={"mode": "Manual", "data": 8}))
    assert "1 and none, which mode Manual takes where nothing is given" in why.message


def test_a_pinned_tensor_size_makes_no_plan_that_no_node_has_room_for() -> None:
    training = {"globalBatch": 12, "sequenceLength": 4096, "precision": "bf16"}
    wish = ask(devices=12, perPod=6, training=training, parallelism={"tensor": 4})
    best = made(wish.replace(shapes=(wish.shapes[0].replace(nodes=2),)))
    assert (best.tensor, best.pods_together) == (4, 1)


def test_without_a_time_the_rule_is_stated() -> None:
    best = made(ask(gpu="an accelerator that nobody knows"))
    assert best.step is None
    reasons = {one.axis: one.reason for one in best.rejected}
    assert reasons["objective"].startswith(
        "time: not known for these devices; preferred instead: no full recomputation"
    )


def test_fewest_devices_are_found_and_one_pod_fewer_does_not_do() -> None:
    wish = ask(devices=32, perPod=2, parallelism={"objective": "devices"})
    best = made(wish)
    assert best.world_size < 32
    assert best.request_digest == wish.content_hash()
    fewer = [n for n in range(2, best.world_size, 2) if wish.training.global_batch % n == 0]
    for devices in fewer:
        assert plan(ask(devices=devices, perPod=2)).plan is None


def test_a_job_keeps_its_devices_whatever_the_objective() -> None:
    best = made(ask(LLAMA_1B, whatIf=False, parallelism={"objective": "devices"}))
    assert best.world_size == 8
    assert "devices.count that it asks for" in best.rejected[-1].reason


def test_most_head_room_needs_no_more_than_the_fastest() -> None:
    fastest, leanest = (made(ask(parallelism={"objective": goal})) for goal in ("time", "memory"))
    assert peak(leanest) < peak(fastest)
    assert leanest.step is not None
    assert fastest.step is not None
    assert leanest.step.step_us >= fastest.step.step_us


def peak(best: ParallelPlan) -> int:
    return max(stage.reserved_bytes for stage in best.memory)


def test_a_refusal_shows_the_closest_layout_and_how_many_devices_would_do() -> None:
    why = refused(ask(devices=2, gib=40))
    assert (why.field, why.value) == ("devices.count", "2")
    assert why.nearest is not None
    assert plan(ask(devices=int(why.nearest), perPod=2, gib=40)).plan is not None
    assert any("parameters: " in line for line in why.memory[0].arithmetic)
    assert "or a device with" in why.message


def test_a_pin_that_is_too_much_is_named_with_what_would_fit() -> None:
    pins = {"microBatch": 16, "recompute": "none"}
    why = refused(ask(gib=40, parallelism=pins))
    assert (why.field, why.value) == ("parallelism.microBatch", "16")
    assert why.nearest is not None
    assert plan(ask(gib=40, parallelism={**pins, "microBatch": int(why.nearest)})).plan is not None


def test_a_job_that_rules_would_save_is_told_the_plan_with_them() -> None:
    why = refused(ask(whatIf=False))
    assert "if the task has rules for it (parallelism.taskRules), this fits: " in why.message
    best = made(ask(whatIf=False, parallelism={"taskRules": list(TaskRule)}))
    assert f"this fits: {best.summary()} " in why.message
    assert (
        "if the task has rules" not in refused(ask(whatIf=False, parallelism={"data": 8, "sharding": "none"})).message
    )


def test_a_job_that_only_axes_of_no_worker_would_save_is_told_the_what_if_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runnable, "CARRIED_OUT", {"sharding": (Sharding.NONE, Sharding.FULL)})
    why = refused(ask(whatIf=False))
    assert "what-if plan that fits: " in why.message
    assert "step " in why.message


@pytest.mark.parametrize("objective", ["time", "memory"])
def test_equal_requests_give_equal_bytes(objective: str) -> None:
    wish = ask(parallelism={"objective": objective})
    again = PlanRequest.model_validate_json(wish.canonical())
    assert plan(wish).canonical() == plan(again).canonical()


def test_a_plan_says_all_of_its_setting() -> None:
    """What was searched comes back from the plan that is stored."""
    wish = ask(parallelism={"pipeline": 4})
    best = made(wish)
    setting = setting_of(best, wish)
    assert (setting.layout.pipeline, setting.layout.world) == (4, 8)
    assert setting.micro_batch * setting.micro_batches * setting.layout.data == 16
    assert (setting.schedule, setting.sharding, setting.recompute) == (best.schedule, best.sharding, best.recompute)


def test_a_measured_peak_gives_a_plan_that_needs_less_with_both_figures() -> None:
    wish = ask()
    first = made(wish)
    fullest = max(stage.total_bytes for stage in first.memory)
    second = replan(first, wish.replace(measured_peak_bytes=fullest + 8 * GIB)).plan
    assert second is not None
    assert (second.tensor, second.pipeline, second.micro_batch, second.recompute, second.sharding) != (
        *(first.tensor, first.pipeline, first.micro_batch, first.recompute, first.sharding),
    )
    line = second.memory[0].arithmetic[-1]
    assert line.startswith("measured: peak ")
    assert " were estimated, so all of it x 1." in line


def test_where_no_split_keeps_the_laws_a_size_that_has_one_is_named() -> None:
    """Seven ranks: the batch of five, the five layers and the sequence all refuse to be divided by them."""
    training = {"globalBatch": 5, "sequenceLength": 4096, "precision": "bf16"}
    why = refused(ask(LLAMA_1B.replace(layers=5), devices=7, perPod=1, training=training))
    assert (why.reason, why.field, why.value) == ("ContradictoryPlan", "devices.count", "7")
    assert why.nearest is not None
    assert plan(ask(LLAMA_1B.replace(layers=5), devices=int(why.nearest), perPod=1, training=training)).plan is not None


SLOW = DeviceShape(
    kind="gpu",
    model=H100,
    memory_bytes=80 * GIB,
    per_node=8,
    nodes=2,
    fabric=Fabric(island=8, nics=1, nic_bytes_per_second=12_500_000_000),
)


def test_a_job_on_a_slow_network_is_sharded_within_nodes_and_says_so() -> None:
    training = {"globalBatch": 128, "sequenceLength": 4096, "precision": "bf16"}
    pins = {"taskRules": [TaskRule.PIPELINE], "pipeline": 1}
    wish = ask(devices=16, whatIf=False, training=training, shapes=[SLOW], parallelism=pins)
    best = made(wish)
    assert (best.sharding, best.shard_ranks, best.data) == (Sharding.FULL, 8, 16)
    assert [(group.axis, group.size, group.stride) for group in best.overlays] == [("shard", 8, 1), ("replica", 2, 8)]
    assert violation(best, wish, knowledge()) is None
    assert "sharding full over groups of 8" in render_plan(plan(wish))
    assert any("sharding full over groups of 8" in one.summary for one in best.alternatives)


def test_what_the_laws_let_interleave_is_searched() -> None:
    """Six micro-batches over four stages are one group of six."""
    pins = {"pipeline": 4, "virtualStages": 2, "schedule": "interleaved", "microBatch": 1}
    training = {"globalBatch": 6, "sequenceLength": 4096, "precision": "bf16"}
    best = made(ask(LLAMA_1B, 4, training=training, parallelism=pins))
    assert (best.virtual_stages, best.accumulation_steps, best.data) == (2, 6, 1)


@pytest.mark.parametrize(
    "wish",
    [
        ask(),
        ask(LLAMA_1B, whatIf=False),
        ask(LLAMA_8B.replace(layers=30), devices=16, gib=40),
        ask(gpu="an accelerator that nobody knows", parallelism={"pipeline": 4}),
        ask(devices=32, perPod=2, parallelism={"objective": "devices"}),
        ask(parallelism={"schedule": "interleaved"}),
    ],
    ids=["large", "small", "uneven", "no time", "fewest", "interleaved"],
)
def test_every_plan_of_the_search_stands_before_the_laws_for_written_plans(wish: PlanRequest) -> None:
    assert violation(made(wish), wish, knowledge()) is None
