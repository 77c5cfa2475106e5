"""The JSON of `kuangchao plan` and its text."""

import json

from kuangchao_contracts.plan import DeviceShape, MeasuredModel, PlanRequest, TrainingSpec
from kuangchao_contracts.rules import TaskRule
from kuangchao_operator.layers.strategy.explain import plan_json, render_plan
from kuangchao_operator.layers.strategy.runnable import on_request
from kuangchao_operator.layers.strategy.shipped import plan

CPU = DeviceShape(kind="cpu", model="EPYC", memory_bytes=2**31, per_node=4, nodes=1)
WISH = PlanRequest(
    devices=4,
    per_pod=2,
    shapes=(CPU,),
    training=TrainingSpec(global_batch=64),
    model=MeasuredModel(parameters=10**6, activation_bytes_per_sample=100 * 2**20),
)
DOCUMENTED = {
    "feasible",
    "tensor",
    "pipeline",
    "data",
    "context",
    "expert",
    "sequence",
    "virtualStages",
    "microBatch",
    "recompute",
    "sharding",
    "memory",
    "stepSeconds",
    "bubbleFraction",
    "alternatives",
    "rejected",
}
DOCUMENTED_STAGE = {
    "parametersBytes",
    "gradientsBytes",
    "optimizerBytes",
    "activationsBytes",
    "otherBytes",
    "totalBytes",
    "reservedBytes",
}


def test_json_of_a_plan_has_every_documented_key() -> None:
    made = plan_json(plan(WISH))
    assert set(made) >= DOCUMENTED
    assert (made["feasible"], made["data"], made["tensor"], made["sequence"]) == (True, 4, 1, False)
    assert (made["microBatch"], made["accumulationSteps"]) == (8, 2)
    assert (made["recompute"], made["sharding"]) == ("none", "none")
    assert set(made["memory"]["stages"][0]) >= DOCUMENTED_STAGE
    assert made["rejected"][0] == {"axis": "tensor", "reason": on_request(TaskRule.TENSOR)}
    assert made["alternatives"][0]["summary"] == "dp4 micro-batch 16"
    assert made["bubbleFraction"] == 0
    assert made["stepSeconds"] is None
    assert json.loads(json.dumps(made, allow_nan=False)) == made


def test_json_of_a_refusal_has_the_same_keys_and_the_reason() -> None:
    refused = plan_json(plan(WISH.replace(training=TrainingSpec(global_batch=30))))
    assert set(refused) == set(plan_json(plan(WISH)))
    assert (refused["feasible"], refused["reason"], refused["field"]) == (False, "Infeasible", "training.globalBatch")
    assert refused["nearest"] == "28 or 32"
    assert refused["data"] is None


def test_json_of_what_does_not_fit_shows_the_memory() -> None:
    refused = plan_json(plan(WISH.replace(model=MeasuredModel(parameters=10**10))))
    assert refused["memory"]["stages"][0]["parametersBytes"] == 10**10, "over four ranks"


def test_text_names_plan_batch_memory_and_what_was_passed_over() -> None:
    text = render_plan(plan(WISH))
    assert text.startswith("Plan dp4 (")
    assert "4 ranks in 2 pods of 2" in text
    assert "64 = micro-batch 8 x 4 ranks x 2 accumulated" in text
    assert "parameters: 1,000,000 x 4 B (fp32) = 4,000,000 B (3.8 MiB)" in text
    assert "Passed over: dp4 micro-batch 16: needs" in text
    assert "Not used: sharding (fits without: " in text


def test_text_says_when_memory_was_not_checked() -> None:
    assert "Memory: not checked" in render_plan(plan(WISH.replace(model=None)))


def test_text_of_a_command_claims_nothing_about_its_batch() -> None:
    assert "Batch: split by the command" in render_plan(plan(WISH.replace(managed=False, model=None)))


def test_text_of_a_refusal_ends_with_what_would_do() -> None:
    text = render_plan(plan(WISH.replace(training=TrainingSpec(global_batch=30))))
    assert text.startswith("Infeasible: training.globalBatch=30")
    assert "Nearest that would do: training.globalBatch 28 or 32" in text
