"""Plans judged as they are written: by hand or by the search, no law is taken on trust."""

from typing import Any

import pytest

from kuangchao_contracts.parallel import Overlay, OverlayGroups, Schedule
from kuangchao_contracts.plan import (
    Axis,
    AxisGroups,
    DeviceShape,
    Experts,
    Infeasible,
    MeasuredModel,
    Parallelism,
    ParallelismMode,
    ParallelPlan,
    PlanRequest,
    Precision,
    Recompute,
    Sharding,
    StageMemory,
    TrainingSpec,
    TransformerModel,
)
from kuangchao_operator.layers.strategy import validate
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.groups import mesh, overlays
from kuangchao_operator.layers.strategy.schedule.waits import DeadlockError
from kuangchao_operator.layers.strategy.shipped import knowledge, plan

GIB = 2**30
H100 = DeviceShape(kind="gpu", model="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB, per_node=8, nodes=2048)
LLAMA = TransformerModel(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
MOE = TransformerModel(
    layers=16, hidden=1024, heads=16, ffn=2816, vocab=32000, experts=Experts(count=8, per_token=2, ffn=1408)
)
LARGEST = 512 * 1024


def wish(model: Any = LLAMA, devices: int = 16, batch: int = 32, **changes: Any) -> PlanRequest:
    return PlanRequest(
        devices=devices,
        per_pod=min(8, devices),
        shapes=changes.pop("shapes", (H100,)),
        model=model,
        training=TrainingSpec(global_batch=batch, sequence_length=4096, precision=Precision.BF16),
        parallelism=Parallelism.model_validate(changes.pop("pins", {})),
        what_if=True,
        **changes,
    )


def by_hand(layout: Layout, moe: bool = False, **changes: Any) -> ParallelPlan:
    """A plan as somebody would write it for `wish()`, or for it with other sizes."""
    base: dict[str, Any] = {
        "world_size": layout.world,
        "per_pod": 8,
        "pods": layout.world // 8,
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "context": layout.context,
        "data": layout.data,
        "expert": layout.expert,
        "expert_tensor": layout.expert_tensor,
        "sequence": layout.sequence,
        "virtual_stages": layout.virtual,
        "stage_layers": layout.stage_layers or (),
        "shard_ranks": layout.shard_ranks,
        "micro_batch": 1,
        "accumulation_steps": 32 // layout.data,
        "global_batch": 32,
        "recompute": Recompute.FULL,
        "sharding": Sharding.OPTIMIZER,
        "groups": mesh(layout),
        "overlays": overlays(layout, layout.shard_ranks, moe=moe),
        "memory_checked": False,
        "device_memory_bytes": 80 * GIB,
        "request_digest": "a" * 64,
    }
    return ParallelPlan(**base | changes)


LAYOUT = Layout(tensor=2, pipeline=4, data=2)
STAGE = StageMemory(
    stage=0,
    parameters_bytes=1,
    gradients_bytes=1,
    optimizer_bytes=1,
    activations_bytes=1,
    other_bytes=1,
    total_bytes=5,
    reserved_bytes=5,
)


def refusal(made: ParallelPlan, request: PlanRequest) -> Infeasible:
    found = validate.violation(made, request, knowledge())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("made", "request_"),
    [
        (by_hand(LAYOUT), wish()),
        (by_hand(Layout(pipeline=4, data=4, stage_layers=(7, 9, 9, 7))), wish()),
        (by_hand(Layout(data=16, expert=8), moe=True), wish(MOE)),
        (by_hand(Layout(data=16, shard_ranks=8), sharding=Sharding.FULL), wish()),
        (by_hand(Layout(tensor=8, data=2, sequence=True)), wish(pins={"tensor": 8, "data": 2})),
    ],
)
def test_plans_by_hand_that_keep_every_law(made: ParallelPlan, request_: PlanRequest) -> None:
    assert validate.violation(made, request_, knowledge()) is None


BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "for other devices": ({"world_size": 8}, "plan.worldSize", "16"),
    "other pods": ({"per_pod": 4, "pods": 4}, "plan.perPod", "8"),
    "pods that are missing": ({"pods": 1}, "plan.pods", "2"),
    "another batch": ({"global_batch": 64, "accumulation_steps": 32}, "plan.globalBatch", "32"),
    "a batch of which half is lost": ({"accumulation_steps": 8}, "plan.accumulationSteps", "16"),
    "a batch that is more": ({"micro_batch": 2}, "plan.accumulationSteps", "8"),
    "a command's": ({"managed": False}, "plan.managed", "true"),
    "an axis that stands twice": (
        {"groups": (*mesh(LAYOUT)[:2], AxisGroups(axis=Axis.TENSOR, size=2, stride=4))},
        "plan.groups[tensor]",
        "none",
    ),
    "groups of another size": (
        {"groups": (AxisGroups(axis=Axis.DATA, size=16, stride=1),)},
        "plan.groups[data]",
        "2",
    ),
    "ranks in two groups": (
        {"groups": (*mesh(LAYOUT)[:2], AxisGroups(axis=Axis.PIPELINE, size=4, stride=2))},
        "plan.groups[pipeline].stride",
        "4",
    ),
    "ranks in no group": ({"groups": mesh(LAYOUT)[:2]}, "plan.groups", "16"),
    "experts that the model has not": (
        {"overlays": (OverlayGroups(axis=Overlay.EXPERT, size=2, stride=1),)},
        "plan.overlays[expert]",
        "none",
    ),
    "a stage without memory": ({"memory": (STAGE,), "memory_checked": True}, "plan.memory", "0 to 3, each once"),
    "a stage twice": (
        {"memory": (STAGE.replace(last_stage=3), STAGE.replace(stage=3)), "memory_checked": True},
        "plan.memory",
        "0 to 3, each once",
    ),
    "parts that are more than the whole": (
        {"memory": (STAGE.replace(last_stage=3, total_bytes=4),), "memory_checked": True},
        "plan.memory[0].totalBytes",
        "5",
    ),
    "memory that was not looked at": ({"memory_checked": True}, "plan.memoryChecked", "false"),
    "no bubble": ({"bubble_ppm": 0}, "plan.bubblePpm", "129580"),
    "a schedule of other stages": ({"schedule": Schedule.ZERO_BUBBLE_V}, "parallelism.virtualStages", "2"),
    "layers left out": ({"stage_layers": (8, 8, 8, 7)}, "parallelism.stageLayers", "[8, 8, 8, 8]"),
    "shards of nothing": ({"sharding": Sharding.NONE, "shard_ranks": 2}, "plan.shardRanks", "0"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_plan_is_refused_with_what_would_be_legal(name: str) -> None:
    changes, field, nearest = BROKEN[name]
    why = refusal(by_hand(LAYOUT).replace(**changes), wish())
    assert (why.field, why.nearest) == (field, nearest), why.message
    assert nearest in why.message


def test_laws_of_layouts_hold_for_plans_by_hand_too() -> None:
    why = refusal(by_hand(Layout(tensor=16)), wish())
    assert (why.field, why.value, why.nearest) == ("parallelism.tensor", "16", "8")
    why = refusal(by_hand(Layout(tensor=2, data=8, expert=8), moe=True), wish(MOE))
    assert (why.field, why.value, why.nearest) == ("parallelism.sequence", "false", "true")


def test_groups_of_experts_are_those_of_the_sizes() -> None:
    made = by_hand(Layout(data=16, expert=8), moe=True)
    lost = made.replace(overlays=(OverlayGroups(axis=Overlay.EXPERT, size=3, stride=1), *made.overlays[1:]))
    why = refusal(lost, wish(MOE))
    assert (why.field, why.nearest) == ("plan.overlays[expert]", "size 8, stride 1")
    assert "leaves out 1 ranks of each stage" in why.message
    assert refusal(made.replace(overlays=()), wish(MOE)).field == "plan.overlays[expert]"
    assert refusal(made.replace(overlays=(*made.overlays, made.overlays[0])), wish(MOE)).field == "plan.overlays"


@pytest.mark.parametrize(
    ("layers", "layout", "stages"),
    [(80, Layout(pipeline=16, virtual=2), 32), (30, Layout(pipeline=4, data=4), 4)],
    ids=["80 layers, 64 would train", "30 layers, 28 would train"],
)
def test_layers_that_do_not_come_out_are_placed_by_name(layers: int, layout: Layout, stages: int) -> None:
    """NVIDIA/Megatron-LM#468 and #1304: the rest was left out and nobody was told."""
    schedule = Schedule.INTERLEAVED if layout.virtual > 1 else Schedule.ONE_F_ONE_B
    why = refusal(by_hand(layout, schedule=schedule), wish(LLAMA.replace(layers=layers)))
    assert why.field == "parallelism.stageLayers"
    assert f"{stages} numbers that sum to {layers}" in why.message


def test_what_is_pinned_stands_in_the_plan() -> None:
    why = refusal(by_hand(LAYOUT), wish(pins={"tensor": 4}))
    assert (why.field, why.value, why.nearest) == ("parallelism.tensor", "2", "4")
    manual = Parallelism(mode=ParallelismMode.MANUAL, pipeline=4, data=4)
    why = refusal(by_hand(LAYOUT), wish().replace(parallelism=manual))
    assert (why.field, why.value, why.nearest) == ("parallelism.tensor", "2", "1")


def test_what_workers_do_not_run_is_for_what_if_only() -> None:
    made = by_hand(Layout(context=2, data=8), sharding=Sharding.FULL)
    assert validate.violation(made, wish(), knowledge()) is None
    why = refusal(made, wish().replace(what_if=False))
    assert (why.field, why.nearest) == ("parallelism.context", "1")
    chunks = by_hand(Layout(pipeline=4, data=4, virtual=2), recompute=Recompute.NONE, schedule=Schedule.GPIPE)
    pins = {"taskRules": RULED, "sharding": "optimizer"}
    why = refusal(chunks, wish(LLAMA.replace(layers=8), pins=pins).replace(what_if=False))
    assert (why.field, why.nearest) == ("parallelism.virtualStages", "1")
    assert "the worker runs gpipe with one run of layers a stage" in why.message


def test_tensor_groups_stay_on_an_island_unless_the_user_says_otherwise() -> None:
    narrow = H100.replace(per_node=4)
    made = by_hand(Layout(tensor=8, data=2), per_pod=4, pods=4)
    request = wish(shapes=(narrow,)).replace(per_pod=4)
    assert (refusal(made, request).field, refusal(made, request).nearest) == ("parallelism.tensor", "4")
    pinned = request.replace(parallelism=Parallelism(tensor=8))
    assert validate.violation(made, pinned, knowledge()) is None


def test_gpus_of_several_kinds_share_a_job_over_data_only() -> None:
    mixed = (H100, H100.replace(model="NVIDIA A100-SXM4-80GB", nodes=4))
    request = wish(LLAMA.replace(layers=4), shapes=mixed)
    made = plan(request).plan
    assert made is not None
    assert (made.data, made.tensor, made.pipeline) == (16, 1, 1)
    assert {axis.axis for axis in made.rejected if "pool mixes NVIDIA A100" in axis.reason} >= {"tensor", "pipeline"}
    assert validate.violation(made, request, knowledge()) is None
    why = refusal(by_hand(LAYOUT), request)
    assert (why.field, why.value, why.nearest) == ("parallelism.tensor", "2", "1")


def test_no_tensor_group_begins_inside_of_a_pod() -> None:
    wide = H100.replace(per_node=12)
    made = by_hand(Layout(tensor=4, data=6), per_pod=6, pods=4, global_batch=24, accumulation_steps=4)
    request = wish(devices=24, batch=24, shapes=(wide,)).replace(per_pod=6)
    assert (refusal(made, request).field, refusal(made, request).nearest) == ("parallelism.tensor", "2")


RULED = ["tensor", "sequence", "pipeline"]
UNPINNED: list[tuple[Layout, dict[str, Any], list[str], str, str]] = [
    (
        Layout(pipeline=4, data=4, virtual=2),
        {"schedule": Schedule.ZERO_BUBBLE_V, "recompute": Recompute.NONE},
        RULED,
        "parallelism.schedule=zb-v: used only where the job pins it, by parallelism.schedule: zb-v; nearest",
        "interleaved",
    ),
    (
        Layout(data=16),
        {},
        [],
        "parallelism.sharding=optimizer: used only where the job pins it, by parallelism.sharding: optimizer; nearest",
        "gradients",
    ),
    (Layout(pipeline=4, data=4), {"schedule": Schedule.ZERO_BUBBLE_H2}, RULED, "schedule=zb-h2: not built in", "1f1b"),
    (LAYOUT, {}, RULED[2:], "tensor=2: needs rules in the task: used where parallelism.taskRules names tensor", "1"),
]


@pytest.mark.parametrize(("layout", "changes", "rules", "message", "nearest"), UNPINNED)
def test_what_a_job_has_to_pin_is_told_with_the_pin(
    layout: Layout, changes: dict[str, Any], rules: list[str], message: str, nearest: str
) -> None:
    asked = {"sharding": "optimizer"} if changes else {}
    made = by_hand(layout, **{"recompute": Recompute.NONE} | changes)
    why = refusal(made, wish(LLAMA.replace(layers=8), pins={"taskRules": rules} | asked).replace(what_if=False))
    assert message in why.message
    assert why.nearest == nearest


def test_a_plan_with_the_pin_is_fine() -> None:
    """Only where the job pins it: then it is."""
    layout, changes, rules, *_ = UNPINNED[0]
    pins = {"taskRules": rules, "sharding": "optimizer", "schedule": "zb-v"}
    request = wish(LLAMA.replace(layers=8), pins=pins).replace(what_if=False)
    assert validate.violation(by_hand(layout, **changes), request, knowledge()) is None


def test_memory_is_computed_anew_on_every_stage() -> None:
    why = refusal(by_hand(LAYOUT, sharding=Sharding.NONE), wish(shapes=(H100.replace(memory_bytes=16 * GIB),)))
    assert (why.reason, why.field, len(why.memory)) == ("Infeasible", "deviceMemory", 4)
    assert "stage 3 of the plan needs 39.4 GiB of 15.7 GiB usable" in why.message
    lying = by_hand(LAYOUT, sharding=Sharding.NONE, memory=(STAGE.replace(last_stage=3),), memory_checked=True)
    assert refusal(lying, wish(shapes=(H100.replace(memory_bytes=16 * GIB),))).field == "deviceMemory"


def test_a_schedule_that_waits_for_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object) -> None:
        raise DeadlockError(["stage 0 sends to 1, which sends to 0"])

    monkeypatch.setattr(validate, "prove", hang)
    why = refusal(by_hand(LAYOUT), wish())
    assert (why.field, why.value) == ("parallelism.schedule", "1f1b")
    assert "stage 0 sends to 1" in why.message


SEARCHED: dict[str, PlanRequest] = {
    "a dense model": wish(devices=8),
    "small GPUs": wish(devices=16, shapes=(H100.replace(memory_bytes=24 * GIB),)),
    "pinned pipeline, uneven": wish(LLAMA.replace(layers=30), pins={"pipeline": 4}),
    "by hand, uneven": wish(
        LLAMA.replace(layers=30), pins={"mode": "Manual", "pipeline": 4, "data": 4, "sharding": "full"}
    ),
    "unknown GPUs": wish(shapes=(H100.replace(model="X"),), pins={"pipeline": 4, "sharding": "full"}),
    "interleaved": wish(pins={"pipeline": 4, "schedule": "interleaved", "virtualStages": 2}),
    "experts": wish(MOE, devices=8, pins={"pipeline": 1}),
    "sizes only": wish(MeasuredModel(parameters=10**9), devices=8),
    "sizes only, pinned": wish(MeasuredModel(parameters=10**9), pins={"tensor": 2, "pipeline": 4, "sharding": "full"}),
    "sizes only, by hand": wish(
        MeasuredModel(parameters=10**8), pins={"mode": "Manual", "pipeline": 4, "data": 4, "stageLayers": [1, 2, 2, 1]}
    ),
    "no model": wish(None, devices=8),
    "no model, pinned": wish(None, devices=8, pins={"tensor": 2, "pipeline": 2, "schedule": "zb-v"}),
    "one stage of no model": wish(None, devices=8, pins={"pipeline": 1, "stageLayers": [5]}),
    "data only, as it runs": wish(LLAMA.replace(layers=2), devices=8).replace(what_if=False),
    "a command": wish(None, devices=8, managed=False).replace(what_if=False),
}


@pytest.mark.parametrize("name", SEARCHED)
def test_every_plan_of_the_search_keeps_every_law(name: str) -> None:
    made = plan(SEARCHED[name]).plan
    assert made is not None, plan(SEARCHED[name]).infeasible
    assert validate.violation(made, SEARCHED[name], knowledge()) is None


def test_a_plan_for_16384_ranks_is_small_and_comes_back_from_its_bytes() -> None:
    pins = {"tensor": 8, "pipeline": 128, "context": 1, "schedule": "1f1b"}
    made = plan(wish(LLAMA.replace(layers=128, hidden=16384, heads=128, ffn=53248), 16384, 2048, pins=pins)).plan
    assert made is not None
    assert sum((stage.last_stage or stage.stage) - stage.stage + 1 for stage in made.memory) == 128
    body = made.canonical()
    assert len(body) < LARGEST
    again = ParallelPlan.model_validate_json(body)
    assert (again, again.hash, again.canonical()) == (made, made.hash, body)
