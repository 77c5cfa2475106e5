"""What a plan of this executor needs of a device: figures that others published or that we measured."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kuangchao_contracts.plan import (
    DeviceShape,
    MeasuredModel,
    Optimizer,
    ParallelPlan,
    PlanOutcome,
    PlanRequest,
    Precision,
    StageMemory,
    TransformerModel,
)
from kuangchao_operator.layers.strategy.footprint.budget import device_bytes_for, spared_bytes
from kuangchao_operator.layers.strategy.shipped import knowledge, plan, replan

MIB, GIB = 2**20, 2**30
GPU = DeviceShape(kind="gpu", model="no such GPU", memory_bytes=2**50, per_node=8, nodes=1)
CPU = GPU.replace(kind="cpu")
LLAMA_8B = TransformerModel(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
SEVEN_B = MeasuredModel(parameters=7_000_000_000)
KNOWN = knowledge().calibration
COMMAND = {"managed": False}
"""A command may have any precision: the plan shows what it needs."""


def request(model: MeasuredModel | TransformerModel, **changes: Any) -> PlanRequest:
    training = {"globalBatch": 1, "precision": "fp32", "sequenceLength": 2048, **changes.pop("training", {})}
    fields = {"devices": 1, "perPod": 1, "shapes": [changes.pop("shape", GPU)], **COMMAND, **changes}
    return PlanRequest.model_validate({"model": model, "training": training, **fields})


def planned(outcome: PlanOutcome) -> ParallelPlan:
    assert outcome.infeasible is None, outcome.infeasible
    assert outcome.plan is not None
    return outcome.plan


def need(model: MeasuredModel | TransformerModel, **changes: Any) -> StageMemory:
    return planned(plan(request(model, **changes))).memory[0]


def test_seven_billion_in_fp16_with_adam_takes_84_gb_before_activations() -> None:
    found = need(SEVEN_B, training={"precision": "fp16-pure"})
    states = (found.parameters_bytes, found.gradients_bytes, found.optimizer_bytes)
    assert states == (14 * 10**9, 14 * 10**9, 56 * 10**9)
    assert "states: 14.00 + 14.00 + 56.00 = 84.00 GB" in found.arithmetic


@pytest.mark.parametrize(
    ("precision", "optimizer", "each"),
    [
        (Precision.FP32, Optimizer.ADAMW, 16),
        (Precision.BF16, Optimizer.ADAM, 18),
        (Precision.FP16, Optimizer.ADAM, 18),
        (Precision.FP32, Optimizer.SGD, 8),
        (Precision.FP32, Optimizer.MOMENTUM, 12),
    ],
)
def test_model_state_bytes_for_each_parameter(precision: Precision, optimizer: Optimizer, each: int) -> None:
    """On a GPU torch.optim adds one fp32 temporary for each parameter, at the moment of the update."""
    found = need(SEVEN_B, training={"precision": precision, "optimizer": optimizer})
    assert found.total_bytes == (each + 4) * SEVEN_B.parameters


def test_frozen_parameters_have_no_gradient_and_no_state() -> None:
    found = need(SEVEN_B.replace(trainable_parameters=1_000))
    assert (found.parameters_bytes, found.gradients_bytes, found.optimizer_bytes) == (28 * 10**9, 4_000, 8_000)


def test_ddp_has_no_second_copy_of_the_gradients_but_where_micro_batches_add_up() -> None:
    alone = need(SEVEN_B)
    two = {"devices": 2, "training": {"globalBatch": 2}}
    assert need(SEVEN_B, **two, managed=True).total_bytes == alone.total_bytes
    by_script = need(SEVEN_B, **two)
    assert by_script.total_bytes - alone.total_bytes == alone.gradients_bytes
    several = {"training": {"globalBatch": 4}, "parallelism": {"microBatch": 1}, "managed": True}
    assert need(SEVEN_B, devices=2, **several).total_bytes == by_script.total_bytes


def test_on_a_cpu_the_snapshot_of_a_checkpoint_is_in_the_same_memory() -> None:
    model = SEVEN_B.replace(activation_bytes_per_sample=64 * GIB)
    on_gpu, on_cpu = (need(model, shape=shape) for shape in (GPU, CPU))
    assert on_cpu.total_bytes - on_gpu.total_bytes == on_cpu.parameters_bytes + on_cpu.optimizer_bytes


def test_a_process_on_a_cpu_takes_492_mib_and_a_tenth_more_than_it_uses() -> None:
    found = need(MeasuredModel(parameters=1_000, activation_bytes_per_sample=GIB), shape=CPU)
    assert found.reserved_bytes == -(-found.total_bytes * 11 // 10) + 492 * MIB


def test_activations_of_a_layer_in_plain_torch_are_the_profiled_ones() -> None:
    """A 7B decoder profiled at 64.3 bytes for each token and hidden unit of a layer, of many whose sum counts."""
    deep = TransformerModel(layers=33, hidden=4096, heads=32, ffn=11008, vocab=1)
    training = {"precision": "bf16", "optimizer": "sgd", "globalBatch": 64}
    two = [need(deep.replace(layers=n), training=training) for n in (1, 33)]
    each = (two[1].activations_bytes - two[0].activations_bytes) / (32 * 64 * 2048 * 4096)
    assert each == pytest.approx(64.3, rel=0.01)


def test_every_logit_takes_twelve_bytes() -> None:
    training = {"precision": "bf16", "sequenceLength": 8192, "optimizer": "sgd"}
    small, large = (need(LLAMA_8B.replace(vocab=vocab), training=training) for vocab in (100_000, 151_936))
    held = sum(getattr(large, kind) - getattr(small, kind) for kind in ("parameters_bytes", "gradients_bytes"))
    casts = 2 * 2 * 51_936 * 4096
    assert large.total_bytes - small.total_bytes - held - casts == 12 * 8192 * 51_936


@settings(deadline=None)
@given(
    micro=st.integers(1, 512),
    precision=st.sampled_from(Precision),
    optimizer=st.sampled_from(Optimizer),
    shape=st.sampled_from([GPU, CPU]),
    model=st.sampled_from([LLAMA_8B, SEVEN_B, MeasuredModel(parameters=9, activation_bytes_per_sample=3)]),
)
def test_components_add_up_and_memory_never_falls_with_the_micro_batch(
    micro: int, precision: Precision, optimizer: Optimizer, shape: DeviceShape, model: TransformerModel | MeasuredModel
) -> None:
    training = {"precision": precision, "optimizer": optimizer, "sequenceLength": 128}
    here, more = (need(model, shape=shape, training={**training, "globalBatch": m}) for m in (micro, micro + 1))
    assert here.total_bytes == (
        here.parameters_bytes + here.gradients_bytes + here.optimizer_bytes + here.activations_bytes + here.other_bytes
    )
    assert here.total_bytes <= here.reserved_bytes
    assert here.total_bytes <= more.total_bytes
    assert here.reserved_bytes <= more.reserved_bytes


@given(reserved=st.integers(0, 2**50), backend=st.sampled_from(["kuangchao", "kuangchao-cpu"]))
def test_a_device_named_as_large_enough_is(reserved: int, backend: str) -> None:
    assert spared_bytes(device_bytes_for(reserved, backend, KNOWN), backend, KNOWN) >= reserved


def test_a_measured_peak_scales_all_of_the_estimate_and_says_so() -> None:
    wish = request(
        MeasuredModel(parameters=1_000, activation_bytes_per_sample=MIB), managed=True, training={"globalBatch": 64}
    )
    first = planned(plan(wish))
    measured = 2 * first.memory[0].total_bytes
    again = planned(replan(first, wish.replace(measured_peak_bytes=measured)))
    plain = need(MeasuredModel(parameters=1_000, activation_bytes_per_sample=MIB), training={"globalBatch": 32})
    assert again.micro_batch == 32
    assert again.memory[0].total_bytes == 2 * plain.total_bytes
    text = again.memory[0].arithmetic[-1]
    assert text.startswith("measured: peak 128.0 MiB where 64.0 MiB were estimated, so all of it x 2.0")


def test_a_peak_in_main_memory_is_that_of_the_whole_process() -> None:
    """Corrected, a plan needs what was measured; what no plan changes is not scaled."""
    model = MeasuredModel(parameters=1_000, activation_bytes_per_sample=MIB)
    wish = request(model, managed=True, shape=CPU, training={"globalBatch": 64})
    first = planned(plan(wish))
    process = first.memory[0].reserved_bytes
    runtime = KNOWN.backends["kuangchao-cpu"].runtime_bytes
    again = planned(replan(first, wish.replace(measured_peak_bytes=2 * process - runtime)))
    plain = need(model, shape=CPU, training={"globalBatch": 32})
    assert again.micro_batch == 32
    assert again.memory[0].reserved_bytes - runtime == pytest.approx(2 * (plain.reserved_bytes - runtime), abs=8)
    assert f"all of it but the {runtime // MIB}.0 MiB of the process itself x 2.0" in again.memory[0].arithmetic[-1]


def test_a_second_peak_is_compared_with_the_estimate_and_not_with_the_first_correction() -> None:
    wish = request(
        MeasuredModel(parameters=1_000, activation_bytes_per_sample=MIB), managed=True, training={"globalBatch": 64}
    )
    first = planned(plan(wish))
    second = planned(replan(first, wish.replace(measured_peak_bytes=first.memory[0].total_bytes * 3 // 2)))
    plain = need(MeasuredModel(parameters=1_000, activation_bytes_per_sample=MIB), training={"globalBatch": 32})
    assert second.memory[0].total_bytes == plain.total_bytes * 3 // 2
    third = planned(replan(second, wish.replace(measured_peak_bytes=plain.total_bytes * 7 // 4)))
    least = need(MeasuredModel(parameters=1_000, activation_bytes_per_sample=MIB), training={"globalBatch": 16})
    assert (second.micro_batch, third.micro_batch) == (32, 16)
    assert third.memory[0].total_bytes == pytest.approx(least.total_bytes * 7 / 4, abs=2)


def test_a_measured_peak_below_the_estimate_makes_nothing_smaller() -> None:
    wish = request(
        MeasuredModel(parameters=1_000, activation_bytes_per_sample=MIB), managed=True, training={"globalBatch": 64}
    )
    first = planned(plan(wish))
    again = planned(replan(first, wish.replace(measured_peak_bytes=1)))
    assert again.micro_batch == 32
    plain = need(MeasuredModel(parameters=1_000, activation_bytes_per_sample=MIB), training={"globalBatch": 32})
    assert again.memory[0].total_bytes == plain.total_bytes
