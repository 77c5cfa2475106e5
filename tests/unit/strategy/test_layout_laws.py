"""What users pinned and should not have: refused before anything is costed, with numbers and the nearest legal value.

Numbers in ids are those of public reports where the same input crashed, hung or silently trained another model.
"""

from typing import Any

import pytest
from pydantic import ValidationError

from kuangchao_contracts.fabric import Fabric
from kuangchao_contracts.plan import (
    DeviceShape,
    Experts,
    Infeasible,
    MeasuredModel,
    Parallelism,
    PlanRequest,
    TrainingSpec,
    TransformerModel,
)
from kuangchao_operator.layers.strategy import laws

GIB = 2**30
H100 = DeviceShape(kind="gpu", model="H100", memory_bytes=80 * GIB, per_node=8, nodes=2048)
LLAMA = TransformerModel(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
QWEN = LLAMA.replace(heads=28, kv_heads=28, hidden=3584)
MOE = LLAMA.replace(experts=Experts(count=8, per_token=2, ffn=14336))
GPT = TransformerModel(layers=24, hidden=1024, heads=16, ffn=4096, vocab=50257, learned_positions=1024)


def wish(
    model: Any = LLAMA, devices: int = 16, batch: int = 64, sequence: int | None = 4096, **pins: Any
) -> PlanRequest:
    return PlanRequest(
        devices=devices,
        per_pod=pins.pop("per_pod", 1),
        shapes=pins.pop("shapes", (H100,)),
        model=model,
        training=TrainingSpec(global_batch=batch, sequence_length=sequence),
        parallelism=Parallelism.model_validate(pins),
        what_if=True,
    )


def refusal(request: PlanRequest) -> Infeasible:
    found = laws.violated(request)
    assert found is not None
    return found


REFUSED: dict[str, tuple[PlanRequest, str, str, str]] = {
    "AdaptThink#1: 28 heads": (wish(QWEN, 8, tensor=8), "parallelism.tensor", "8", "4"),
    "vllm#596: 40 heads": (
        wish(LLAMA.replace(heads=40, hidden=5120), 3, 3, tensor=3),
        "parallelism.tensor",
        "3",
        "1",
    ),
    "torchtitan#2577: 2 key-value heads": (wish(LLAMA.replace(kv_heads=2), tensor=4), "parallelism.tensor", "4", "2"),
    "transformers#48307: 4 key-value heads": (
        wish(LLAMA.replace(kv_heads=4), tensor=8),
        "parallelism.tensor",
        "8",
        "4",
    ),
    "an ffn that does not divide": (wish(LLAMA.replace(ffn=14340), tensor=8), "parallelism.tensor", "8", "4"),
    "Megatron#1778: one stage of 28 layers": (
        wish(pipeline=1, stageLayers=[28]),
        "parallelism.stageLayers",
        "28",
        "[32]",
    ),
    "Bridge#5077: 8 layers as 9": (
        wish(LLAMA.replace(layers=8), pipeline=4, stageLayers=[1, 2, 2, 4]),
        "parallelism.stageLayers",
        "1, 2, 2, 4",
        "[1, 2, 2, 3]",
    ),
    "Megatron#1852: an empty stage": (
        wish(pipeline=4, stageLayers=[16, 0, 10, 6]),
        "parallelism.stageLayers",
        "16, 0, 10, 6",
        "[15, 1, 10, 6]",
    ),
    "too few numbers": (
        wish(pipeline=4, virtualStages=2, stageLayers=[8, 8, 8, 8]),
        "parallelism.stageLayers",
        "8, 8, 8, 8",
        "[4, 4, 4, 4, 4, 4, 4, 4]",
    ),
    "torchtitan#775: 4 micro-batches, 8 stages": (
        wish(devices=8, batch=4, tensor=1, context=1, pipeline=8),
        "training.globalBatch",
        "4",
        "8",
    ),
    "one micro-batch, whatever data is": (
        wish(devices=8, batch=4, microBatch=4, pipeline=4),
        "parallelism.pipeline",
        "4",
        "1",
    ),
    "5 micro-batches of a fixed number of data ranks": (
        wish(devices=32, batch=10, data=2, pipeline=8),
        "parallelism.pipeline",
        "8",
        "4",
    ),
    "more stages than layers": (wish(LLAMA.replace(layers=6), pipeline=16), "parallelism.pipeline", "16", "4"),
    "more virtual stages than layers": (wish(pipeline=16, virtualStages=4), "parallelism.virtualStages", "4", "2"),
    "two runs of layers on more stages than half the layers": (
        wish(LLAMA.replace(layers=28), pipeline=16, schedule="interleaved"),
        "parallelism.pipeline",
        "16",
        "8",
    ),
    "a schedule that no two stages have the layers for": (
        wish(LLAMA.replace(layers=3), schedule="zb-v"),
        "parallelism.schedule",
        "zb-v",
        "1f1b",
    ),
    "virtual stages without a pipeline": (wish(pipeline=1, virtualStages=2), "parallelism.virtualStages", "2", "1"),
    "first and last stage empty, and one between": (
        wish(pipeline=4, stageLayers=[0, 0, 16, 16]),
        "parallelism.stageLayers",
        "0, 0, 16, 16",
        "[0, 1, 16, 15]",
    ),
    "virtual stages of any pipeline": (
        wish(LLAMA.replace(layers=4), virtualStages=3),
        "parallelism.virtualStages",
        "3",
        "2",
    ),
    "a schedule without stages": (wish(pipeline=1, schedule="zb-v"), "parallelism.schedule", "zb-v", "1f1b"),
    "a schedule on one device": (wish(devices=1, schedule="gpipe"), "parallelism.schedule", "gpipe", "1f1b"),
    "a schedule over GPUs of two kinds": (
        wish(shapes=(H100, H100.replace(model="A100")), schedule="zb-h1"),
        "parallelism.schedule",
        "zb-h1",
        "1f1b",
    ),
    "two runs of layers under 1F1B": (
        wish(pipeline=2, virtualStages=2, schedule="1f1b"),
        "parallelism.virtualStages",
        "2",
        "1",
    ),
    "three under ZB-V": (wish(pipeline=2, virtualStages=3, schedule="zb-v"), "parallelism.virtualStages", "3", "2"),
    "starcoder#77: 64 is not 4 x 8": (
        wish(devices=64, tensor=4, pipeline=8, context=1, data=1),
        "parallelism.data",
        "1",
        "2",
    ),
    "an axis that does not divide": (wish(devices=16, tensor=3), "parallelism.tensor", "3", "2 or 4"),
    "axes that do not divide": (wish(devices=16, tensor=4, context=3), "parallelism.context", "3", "2 or 4"),
    "all axes and other devices": (
        wish(devices=20, tensor=8, pipeline=1, context=1, data=2),
        "devices.count",
        "20",
        "16",
    ),
    "examples#41: a batch that is lost in part": (
        wish(batch=100, tensor=1, pipeline=1, context=1),
        "training.globalBatch",
        "100",
        "96 or 112",
    ),
    "a micro-batch that does not divide": (wish(batch=64, microBatch=3), "parallelism.microBatch", "3", "2 or 4"),
    "experts of a dense model": (wish(expert=2), "parallelism.expert", "2", "1"),
    "experts that do not divide": (wish(MOE, devices=12, expert=3), "parallelism.expert", "3", "2 or 4"),
    "ranks that divide otherwise than the experts": (
        wish(MOE, devices=12, batch=12, expert=8, pipeline=1),
        "parallelism.expert",
        "8",
        "4",
    ),
    "more expert ranks than a stage has": (wish(MOE, pipeline=4, expert=8), "parallelism.expert", "8", "4"),
    "experts beside tensor ranks without sequence": (
        wish(MOE).replace(parallelism=Parallelism(tensor=2, expert=2, sequence=False)),
        "parallelism.sequence",
        "false",
        "true",
    ),
    "a context that does not cut evenly": (wish(sequence=4100, context=4), "parallelism.context", "4", "2"),
    "an odd sequence": (wish(sequence=4097, context=2), "parallelism.context", "2", "1"),
    "learned positions end": (wish(GPT, sequence=2048), "training.sequenceLength", "2048", "1024"),
    "context of a model without layers": (
        wish(MeasuredModel(parameters=10**9), context=2),
        "parallelism.context",
        "2",
        "1",
    ),
    "experts of no model": (wish(None, expert=2), "parallelism.expert", "2", "1"),
    "sequences beside tensor ranks of no model": (
        wish(None).replace(parallelism=Parallelism(tensor=2, sequence=True)),
        "parallelism.sequence",
        "true",
        "false",
    ),
    "tensor of no model, of which the devices have no such part": (
        wish(None, devices=16, tensor=3),
        "parallelism.tensor",
        "3",
        "2 or 4",
    ),
    "more stages of no model than micro-batches": (
        wish(None, devices=8, batch=16, microBatch=4, pipeline=8),
        "parallelism.pipeline",
        "8",
        "4",
    ),
    "numbers for other stages of no model": (
        wish(None, pipeline=2, stageLayers=[1, 1, 1]),
        "parallelism.stageLayers",
        "1, 1, 1",
        "[1, 2]",
    ),
    "a stage without layers of no model": (
        wish(None, pipeline=3, devices=12, batch=12, stageLayers=[2, 0, 2]),
        "parallelism.stageLayers",
        "2, 0, 2",
        "[2, 1, 1]",
    ),
    "no layers of no model": (wish(None, pipeline=2, stageLayers=[0, 0]), "parallelism.stageLayers", "0, 0", "[1, 1]"),
    "three under ZB-V of no model": (
        wish(None, pipeline=2, virtualStages=3, schedule="zb-v"),
        "parallelism.virtualStages",
        "3",
        "2",
    ),
    "absurd: a million tensor ranks": (wish(tensor=2**20), "parallelism.tensor", "1048576", "8"),
    "absurd: a million virtual stages": (
        wish(pipeline=2, virtualStages=2**20),
        "parallelism.virtualStages",
        "1048576",
        "16",
    ),
    "absurd: more devices than exist": (wish(devices=2**20), "devices.count", "1048576", "16384"),
    "MIG slices in a group": (
        wish(shapes=(H100.replace(model="NVIDIA A100-SXM4-40GB MIG 1g.5gb"),), devices=4),
        "devices.count",
        "4",
        "1",
    ),
    "GPUs of two kinds in a tensor group": (
        wish(shapes=(H100, H100.replace(model="A100", memory_bytes=40 * GIB)), tensor=8),
        "parallelism.tensor",
        "8",
        "1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_field_value_and_nearest(name: str) -> None:
    request, field, value, nearest = REFUSED[name]
    why = refusal(request)
    assert (why.field, why.value, why.nearest) == (field, value, nearest), why.message
    assert all(part in why.message for part in (value, nearest.split(" or ")[0])), why.message
    assert why.reason in {"ContradictoryPlan", "Infeasible", "InvalidSpec"}


def test_28_heads_on_8_devices_name_all_tensor_sizes_that_divide_both() -> None:
    assert "28 heads: it may be 1, 2, 4; nearest" in refusal(wish(QWEN, 8, tensor=8)).message
    assert "or devices.count: 28" not in refusal(wish(QWEN, 8, tensor=8)).message


def test_what_else_would_help_is_told_with_a_nearest_value_and_without() -> None:
    slices = (H100.replace(model="NVIDIA A100-SXM4-40GB MIG 1g.5gb"),)
    assert "devices.count: 1, or a pool of whole GPUs" in refusal(wish(devices=4, shapes=slices)).message
    why = refusal(wish(devices=4, per_pod=2, shapes=slices))
    assert why.nearest is None, "one device is no whole pod"
    assert why.message.endswith("; it takes a pool of whole GPUs")


def test_fields_are_called_by_their_whole_path() -> None:
    message = refusal(wish(batch=100, tensor=1, pipeline=1, context=1)).message
    assert "training.globalBatch=100" in message
    assert "training.globalBatch: 96 or 112" in message
    assert "devices.count: 10 or 20" in message


LEGAL: dict[str, PlanRequest] = {
    "nothing pinned": wish(),
    "the most tensor ranks": wish(tensor=8, sequence=4096),
    "an embedding and an output layer alone": wish(pipeline=4, stageLayers=[0, 16, 16, 0]),
    "uneven stages": wish(pipeline=4, stageLayers=[7, 9, 9, 7]),
    "as many stages as layers": wish(LLAMA.replace(layers=8), pipeline=8),
    "1F1B of one stage": wish(pipeline=1, schedule="1f1b"),
    "experts over data ranks": wish(MOE, expert=8),
    "experts with tensor, sequence open": wish(MOE, tensor=2, expert=4),
    "as many micro-batches as stages": wish(devices=8, batch=8, tensor=1, context=1, pipeline=8),
    "tensor beyond an island, by the user's word": wish(shapes=(H100.replace(fabric=Fabric(island=2)),), tensor=8),
    "data over GPUs of two kinds": wish(shapes=(H100, H100.replace(model="A100"))),
    "one MIG slice": wish(shapes=(H100.replace(model="A100 MIG 1g.5gb"),), devices=1, batch=1),
    "as many positions as learned": wish(GPT, sequence=1024),
    "a micro-batch that leaves the data size open": wish(batch=64, microBatch=4),
    "tensor of a model without layers": wish(MeasuredModel(parameters=10**9), tensor=2),
    "pipeline of no model": wish(None, pipeline=2),
    "a cut that only a worker can judge": wish(None, pipeline=4, stageLayers=[0, 5, 5, 1]),
    "both, of no model": wish(None, tensor=4, pipeline=2, schedule="interleaved", virtualStages=3),
}


@pytest.mark.parametrize("name", LEGAL)
def test_what_can_be_is_not_refused(name: str) -> None:
    assert laws.violated(LEGAL[name]) is None


@pytest.mark.parametrize("size", ["layers", "heads", "hidden", "ffn", "vocab", "kv_heads"])
def test_a_model_without_layers_or_heads_is_no_model(size: str) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        LLAMA.replace(**{size: 0})


@pytest.mark.parametrize("pin", ["tensor", "pipeline", "data", "context", "expert", "micro_batch", "virtual_stages"])
@pytest.mark.parametrize("size", [0, -1, 2**20 + 1])
def test_sizes_that_are_no_sizes(pin: str, size: int) -> None:
    with pytest.raises(ValidationError):
        Parallelism.model_validate({pin: size})
