"""From a job and a pool to the planner's input."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
from kuangchao_contracts.api.trainingjob import TrainingJobSpec
from kuangchao_contracts.plan import DeviceShape, MeasuredModel
from kuangchao_operator.layers.strategy.requests import plan_request

CPU = DeviceShape(kind="cpu", model="EPYC", memory_bytes=2**31, per_node=4, nodes=2)
GPU = DeviceShape(kind="gpu", model="H100", memory_bytes=80 * 2**30, per_node=8, nodes=1)
T4 = DeviceShape(kind="gpu", model="T4", memory_bytes=16 * 2**30, per_node=4, nodes=9)
GPU_POOL = ResourcePoolSpec.model_validate({"deviceType": "gpu"})


def job(**changes: Any) -> TrainingJobSpec:
    return TrainingJobSpec.model_validate({"pool": "p", "task": "m:f", "devices": {"count": 4, "perPod": 2}, **changes})


def test_every_wish_of_the_user_reaches_the_planner() -> None:
    spec = job(
        training={"globalBatch": 8, "precision": "bf16"},
        parallelism={"tensor": 2},
        model={"kind": "measured", "parameters": 5},
    )
    made = plan_request(spec, ResourcePoolSpec(), (CPU,))
    assert (made.devices, made.per_pod, made.shapes, made.managed) == (4, 2, (CPU,), True)
    assert (made.training, made.parallelism) == (spec.training, spec.parallelism)
    assert made.model == MeasuredModel(parameters=5)


def test_a_command_is_not_managed() -> None:
    assert not plan_request(job(task=None, command=["train.py"]), ResourcePoolSpec(), (CPU,)).managed


def test_a_plug_in_between_algorithm_and_state_is_told_of() -> None:
    plain, plugged = (plan_request(job(plugins=names), ResourcePoolSpec(), (CPU,)) for names in ([], [{"name": "a"}]))
    assert (plain.plugged, plugged.plugged) == (False, True)
    assert "plugged" not in plain.wire()


def test_only_devices_of_the_wanted_kind_count() -> None:
    assert plan_request(job(), ResourcePoolSpec(), (CPU, GPU)).shapes == (CPU,)
    assert plan_request(job(), GPU_POOL, (CPU, GPU)).shapes == (GPU,)
    assert plan_request(job(devices={"count": 1, "type": "gpu"}), ResourcePoolSpec(), (CPU,)).shapes == ()


@given(shapes=st.permutations([GPU, T4, GPU.replace(nodes=3), T4.replace(per_node=2)]))
def test_the_order_of_shapes_changes_nothing(shapes: list[DeviceShape]) -> None:
    made = plan_request(job(), GPU_POOL, tuple(shapes))
    assert made.content_hash() == plan_request(job(), GPU_POOL, tuple(reversed(shapes))).content_hash()


def test_changes_that_a_plan_does_not_depend_on_leave_the_request_alone() -> None:
    plain = plan_request(job(), ResourcePoolSpec(), (CPU,))
    assert plan_request(job(suspend=True, priority="debug", retryGeneration=3), ResourcePoolSpec(), (CPU,)) == plain
