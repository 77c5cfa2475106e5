"""The memory estimate against published figures, and its shape over the micro-batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts.plan import (
    DeviceShape,
    MeasuredModel,
    Optimizer,
    Precision,
    TrainingSpec,
    TransformerModel,
)
from kuangchao_operator.layers.strategy import memory
from kuangchao_operator.layers.strategy.memory import Evidence

GIB = 2**30
GPU = DeviceShape(kind="gpu", model="H100", memory_bytes=80 * GIB, per_node=8, nodes=1)
LLAMA_8B = TransformerModel(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
LLAMA_70B = TransformerModel(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256)
LLAMA_405B = TransformerModel(layers=126, hidden=16384, heads=128, kv_heads=8, ffn=53248, vocab=128256)
SEVEN_B = MeasuredModel(parameters=7_000_000_000)


@pytest.mark.parametrize(
    ("model", "billions"), [(LLAMA_8B, 8.030), (LLAMA_70B, 70.55), (LLAMA_405B, 405.9)], ids=["8B", "70B", "405B"]
)
def test_parameter_count_is_the_published_one(model: TransformerModel, billions: float) -> None:
    assert memory.parameter_count(model) / 1e9 == pytest.approx(billions, rel=5e-4)


def test_tied_embeddings_and_plain_ffn_are_smaller() -> None:
    tied = LLAMA_8B.replace(tied_embeddings=True)
    assert memory.parameter_count(LLAMA_8B) - memory.parameter_count(tied) == 128256 * 4096
    plain = LLAMA_8B.replace(gated_ffn=False)
    assert memory.parameter_count(LLAMA_8B) - memory.parameter_count(plain) == 32 * 4096 * 14336


def test_seven_billion_in_fp16_with_adam_takes_84_gb_before_activations() -> None:
    need = memory.estimate(SEVEN_B, TrainingSpec(precision=Precision.FP16), GPU, 1, 1)
    assert (need.parameters_bytes, need.gradients_bytes, need.optimizer_bytes) == (14 * 10**9, 14 * 10**9, 56 * 10**9)


@pytest.mark.parametrize(
    ("precision", "optimizer", "each"),
    [
        (Precision.FP32, Optimizer.ADAMW, 16),
        (Precision.BF16, Optimizer.ADAM, 18),
        (Precision.FP16, Optimizer.ADAM, 20),
        (Precision.FP32, Optimizer.SGD, 8),
        (Precision.FP32, Optimizer.MOMENTUM, 12),
    ],
)
def test_model_state_bytes_for_each_parameter(precision: Precision, optimizer: Optimizer, each: int) -> None:
    need = memory.estimate(SEVEN_B, TrainingSpec(precision=precision, optimizer=optimizer), GPU, 1, 1)
    assert need.total_bytes - memory.runtime_bytes(GPU) == each * SEVEN_B.parameters


def test_frozen_parameters_have_no_gradient_and_no_state() -> None:
    frozen = SEVEN_B.replace(trainable_parameters=1_000)
    need = memory.estimate(frozen, TrainingSpec(), GPU, 1, 1)
    assert (need.parameters_bytes, need.gradients_bytes, need.optimizer_bytes) == (28 * 10**9, 4_000, 8_000)


def test_ddp_buckets_are_a_second_copy_of_the_gradients() -> None:
    alone, two = (memory.estimate(SEVEN_B, TrainingSpec(), GPU, ranks, 1) for ranks in (1, 2))
    assert two.other_bytes - alone.other_bytes == two.gradients_bytes


def test_on_a_cpu_the_snapshot_of_a_checkpoint_is_in_the_same_memory() -> None:
    cpu = GPU.replace(kind="cpu")
    on_gpu, on_cpu = (memory.estimate(SEVEN_B, TrainingSpec(), shape, 1, 1) for shape in (GPU, cpu))
    states = on_cpu.parameters_bytes + on_cpu.optimizer_bytes
    assert on_cpu.other_bytes - memory.runtime_bytes(cpu) == states
    assert on_gpu.other_bytes == memory.runtime_bytes(GPU)


def test_bf16_is_autocast_over_fp32_parameters() -> None:
    need = memory.estimate(SEVEN_B, TrainingSpec(precision=Precision.BF16), GPU, 1, 1)
    assert need.parameters_bytes == need.gradients_bytes == 28 * 10**9
    assert need.other_bytes - memory.runtime_bytes(GPU) == 14 * 10**9


def test_measured_activations_and_buffers() -> None:
    model = MeasuredModel(parameters=1_000, buffer_bytes=77, activation_bytes_per_sample=1_000)
    need = memory.estimate(model, TrainingSpec(), GPU, 1, 5)
    assert need.activations_bytes == 5_000
    assert need.other_bytes == 77 + memory.runtime_bytes(GPU)


def test_activations_of_a_layer_in_plain_torch_are_the_profiled_ones() -> None:
    """A 7B decoder profiled at 64.3 bytes for each token and hidden unit of a layer."""
    model = TransformerModel(layers=1, hidden=4096, heads=32, ffn=11008, vocab=1)
    need = memory.estimate(model, TrainingSpec(precision=Precision.BF16, sequence_length=2048), GPU, 1, 1)
    tokens_hidden = 2048 * 4096
    assert (need.activations_bytes - 2 * tokens_hidden) / tokens_hidden == pytest.approx(64.3, rel=0.01)


def test_the_loss_head_counts() -> None:
    training = TrainingSpec(precision=Precision.BF16, sequence_length=8192)
    small, large = (
        memory.estimate(LLAMA_8B.replace(vocab=vocab), training, GPU, 1, 1).activations_bytes for vocab in (1, 151_936)
    )
    assert large - small == 12 * 8192 * 151_935


@given(
    micro=st.integers(1, 512),
    data=st.integers(1, 64),
    precision=st.sampled_from(Precision),
    optimizer=st.sampled_from(Optimizer),
    measured=st.integers(0, 2**42),
    model=st.sampled_from([LLAMA_8B, SEVEN_B, MeasuredModel(parameters=9, activation_bytes_per_sample=3)]),
)
def test_components_add_up_and_memory_never_falls_with_the_micro_batch(
    micro: int,
    data: int,
    precision: Precision,
    optimizer: Optimizer,
    measured: int,
    model: TransformerModel | MeasuredModel,
) -> None:
    training = TrainingSpec(precision=precision, optimizer=optimizer, sequence_length=128)
    evidence = Evidence(micro_batch=4, estimated_bytes=10**9, measured_bytes=measured)
    here, more = (memory.estimate(model, training, GPU, data, m, evidence) for m in (micro, micro + 1))
    assert here.total_bytes == (
        here.parameters_bytes + here.gradients_bytes + here.optimizer_bytes + here.activations_bytes + here.other_bytes
    )
    assert here.total_bytes <= here.reserved_bytes
    assert here.total_bytes <= more.total_bytes
    assert here.reserved_bytes <= more.reserved_bytes


@given(reserved=st.integers(0, 2**50))
def test_a_device_named_as_large_enough_is(reserved: int) -> None:
    device = memory.device_bytes_for(reserved)
    assert memory.usable_bytes(GPU.replace(memory_bytes=device)) >= reserved


def test_arithmetic_shows_the_numbers() -> None:
    need = memory.estimate(SEVEN_B, TrainingSpec(precision=Precision.FP16), GPU, 2, 1)
    text = "\n".join(need.arithmetic)
    assert "parameters: 7,000,000,000 x 2 B (fp16) = 13.0 GiB" in text
    assert "optimizer: 7,000,000,000 x 8 B (fp32 states of adamw) = 52.2 GiB" in text
    assert "13.0 GiB gradient buckets of DDP" in text


def test_a_measured_peak_raises_the_estimate_in_proportion_and_says_so() -> None:
    model = MeasuredModel(parameters=1_000, activation_bytes_per_sample=1_000)
    plain = memory.estimate(model, TrainingSpec(), GPU, 1, 8)
    evidence = Evidence(micro_batch=8, estimated_bytes=plain.total_bytes, measured_bytes=plain.total_bytes + 80_000)
    assert memory.estimate(model, TrainingSpec(), GPU, 1, 8, evidence).total_bytes == plain.total_bytes + 80_000
    half = memory.estimate(model, TrainingSpec(), GPU, 1, 4, evidence)
    assert half.activations_bytes == 4_000 + 40_000
    assert any(line.startswith("measured: peak") for line in half.arithmetic)


def test_a_measured_peak_of_a_model_without_activations_is_a_constant() -> None:
    model = MeasuredModel(parameters=1_000)
    evidence = Evidence(micro_batch=8, estimated_bytes=0, measured_bytes=5_000)
    one, two = (memory.estimate(model, TrainingSpec(), GPU, 1, m, evidence).other_bytes for m in (1, 2))
    assert one == two == memory.runtime_bytes(GPU) + 5_000
