"""The fullest stage is found among a few, and a model without a shape has a footprint too."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.strategy.footprint.settings import CALIBRATION, GIB, LLAMA_8B, setting

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import MeasuredModel, Optimizer, Precision, Sharding
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.measured import measured_fullest, measured_peaks
from kuangchao_operator.layers.strategy.footprint.peaks import fullest, peaks
from kuangchao_operator.layers.strategy.footprint.setting import SHAPELESS
from kuangchao_operator.layers.strategy.footprint.stages import decisive, stages

CHUNKS = {Schedule.INTERLEAVED: 2, Schedule.ZERO_BUBBLE_V: 2}


@settings(deadline=None)
@given(
    schedule=st.sampled_from(Schedule),
    pipeline=st.sampled_from([1, 2, 4, 8]),
    rounds=st.integers(1, 4),
    cuts=st.lists(st.integers(1, 3), min_size=16, max_size=16),
)
def test_no_other_stage_is_fuller_than_the_fullest_of_the_few(
    schedule: Schedule, pipeline: int, rounds: int, cuts: list[int]
) -> None:
    virtual = CHUNKS.get(schedule, 1) if pipeline > 1 else 1
    layers = tuple(cuts[: pipeline * virtual])
    one = setting(
        LLAMA_8B.replace(layers=sum(layers)),
        layout=Layout(pipeline=pipeline, virtual=virtual, stage_layers=layers),
        schedule=schedule,
        micro_batches=pipeline * rounds,
    )
    few = stages(one, CALIBRATION.backends[one.backend], decisive(one))
    found = fullest(few, one, CALIBRATION)
    assert found.device_bytes == max(peak.device_bytes for peak in peaks(one, CALIBRATION))


def measured(model: MeasuredModel, **changes: object) -> int:
    one = setting(
        SHAPELESS, **{"backend": "kuangchao-cpu", "precision": Precision.FP32, "sequence_length": 1, **changes}
    )
    return measured_peaks(model, one, CALIBRATION)[0].allocated_bytes


@settings(deadline=None)
@given(
    schedule=st.sampled_from(Schedule),
    pipeline=st.sampled_from([1, 2, 4]),
    tensor=st.sampled_from([1, 2]),
    rounds=st.integers(1, 4),
    sharding=st.sampled_from(Sharding),
    cuts=st.lists(st.integers(1, 3), min_size=8, max_size=8),
)
def test_no_stage_of_a_described_model_holds_more_than_is_counted_where_only_its_sizes_are_known(
    schedule: Schedule, pipeline: int, tensor: int, rounds: int, sharding: Sharding, cuts: list[int]
) -> None:
    virtual = CHUNKS.get(schedule, 1) if pipeline > 1 else 1
    layers = tuple(cuts[: pipeline * virtual])
    sizes = {"tensor": tensor, "pipeline": pipeline, "virtual": virtual, "data": 2, "stage_layers": layers}
    shaped = setting(
        LLAMA_8B.replace(layers=sum(layers)),
        layout=Layout(**sizes),
        schedule=schedule,
        micro_batches=pipeline * rounds,
        sharding=sharding,
    )
    (whole,) = peaks(replace(shaped, layout=Layout(data=2)), CALIBRATION)
    model = MeasuredModel(
        parameters=whole.stage.held.total, activation_bytes_per_sample=whole.stage.activations // shaped.micro_batch
    )
    bounds = measured_peaks(model, replace(shaped, model=SHAPELESS), CALIBRATION)
    assert measured_fullest(model, replace(shaped, model=SHAPELESS), CALIBRATION).device_bytes == max(
        bound.device_bytes for bound in bounds
    )
    for found, bound in zip(peaks(shaped, CALIBRATION), bounds, strict=True):
        assert all(part <= most for part, most in zip(found.states, bound.states, strict=True))
        assert found.stage.activations <= bound.stage.activations
        assert found.parts.whole_gradients <= bound.parts.whole_gradients


def test_every_rank_of_a_measured_model_that_is_divided_counts_all_of_it_and_what_is_in_flight() -> None:
    model = MeasuredModel(parameters=1_000, activation_bytes_per_sample=GIB, buffer_bytes=77)
    assert measured(model, layout=Layout(tensor=4)) == measured(model) == 28 * 1_000 + GIB + 77
    stages = {"micro_batches": 8, "layout": Layout(pipeline=4), "sequence_length": 1, "backend": "kuangchao-cpu"}
    one = setting(SHAPELESS, precision=Precision.FP32, **stages)
    assert [peak.stage.activations // GIB for peak in measured_peaks(model, one, CALIBRATION)] == [4, 3, 2, 1]
    every = measured_peaks(model, replace(one, schedule=Schedule.GPIPE), CALIBRATION)
    assert [peak.stage.activations // GIB for peak in every] == [8, 8, 8, 8]


def test_a_measured_model_is_its_states_samples_buffers_and_the_snapshot_on_a_cpu() -> None:
    """fp32 and Adam: 16 B a parameter; parameters and states again while a checkpoint is written: 12 B more."""
    model = MeasuredModel(parameters=1_000, activation_bytes_per_sample=GIB, buffer_bytes=77)
    assert measured(model, micro_batch=3) == 28 * 1_000 + 3 * GIB + 77
    assert measured(model.replace(trainable_parameters=0), micro_batch=3) == 8 * 1_000 + 3 * GIB + 77


def test_gradients_lie_in_ddp_buckets_beside_those_of_earlier_micro_batches_and_sgd_has_no_states() -> None:
    model = MeasuredModel(parameters=1_000, activation_bytes_per_sample=GIB)
    alone = measured(model, optimizer=Optimizer.SGD)
    assert alone == 12 * 1_000 + GIB
    two = {"optimizer": Optimizer.SGD, "layout": Layout(data=2)}
    assert measured(model, **two) == alone
    assert measured(model, **two, micro_batches=2) == alone + 4 * 1_000
