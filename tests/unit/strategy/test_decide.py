"""The search: what it prefers, that it never changes the batch, and that equal requests give equal bytes."""

import asyncio
import json
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.contracts.test_plan import hash_by_0_1_0
from tests.unit.strategy.asking import CAPABILITY

from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.fabric import Fabric
from kuangchao_contracts.parallel import Objective
from kuangchao_contracts.plan import (
    Axis,
    DeviceShape,
    Experts,
    Infeasible,
    MeasuredModel,
    Parallelism,
    ParallelPlan,
    PlanOutcome,
    PlanRequest,
    Sharding,
    TrainingSpec,
    TransformerModel,
)
from kuangchao_contracts.ports import operations
from kuangchao_contracts.ports.strategy import ReplanRequest, StrategyControl
from kuangchao_contracts.rules import TaskRule
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.footprint.budget import device_bytes_for
from kuangchao_operator.layers.strategy.runnable import NEUTRAL, closed_reason, open_axes
from kuangchao_operator.layers.strategy.service import REMEMBERED, StrategyService
from kuangchao_operator.layers.strategy.shipped import Planner, knowledge, plan, replan

MIB, GIB = 2**20, 2**30
CPU = DeviceShape(kind="cpu", model="EPYC", memory_bytes=2 * GIB, per_node=4, nodes=3)
MODEL = MeasuredModel(parameters=1_000_000, activation_bytes_per_sample=100 * MIB)


def request(**changes: Any) -> PlanRequest:
    base = PlanRequest(devices=4, per_pod=2, shapes=(CPU,), model=MODEL, training=TrainingSpec(global_batch=64))
    return base.replace(**changes)


def planned(outcome: PlanOutcome) -> ParallelPlan:
    assert outcome.infeasible is None, outcome.infeasible
    assert outcome.plan is not None
    return outcome.plan


def valid(model: type[Contract], /, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(fields).map(model.model_validate)


models = st.one_of(
    st.none(),
    valid(MeasuredModel, parameters=st.integers(1, 10**9), activation_bytes_per_sample=st.integers(0, 10**9)),
    valid(
        TransformerModel,
        layers=st.integers(1, 8),
        hidden=st.just(256),
        heads=st.sampled_from([1, 2, 4, 8]),
        ffn=st.integers(1, 4096),
        vocab=st.integers(1, 50_000),
    ),
)


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    per_pod = draw(st.integers(1, 8))
    shapes = draw(
        st.lists(
            valid(
                DeviceShape,
                kind=st.sampled_from(["cpu", "gpu"]),
                model=st.sampled_from(["a", "b"]),
                memory_bytes=st.integers(0, 64 * GIB),
                per_node=st.integers(1, 16),
                nodes=st.integers(1, 64),
            ),
            max_size=3,
        )
    )
    return PlanRequest(
        devices=per_pod * draw(st.integers(1, 32)),
        per_pod=per_pod,
        shapes=tuple(shapes),
        model=draw(models),
        training=TrainingSpec(
            global_batch=draw(st.integers(1, 64)) * draw(st.sampled_from([1, 8, 64])),
            sequence_length=draw(st.sampled_from([None, 128])),
        ),
        parallelism=Parallelism(
            data=draw(st.sampled_from([None, 2, 8])),
            tensor=draw(st.sampled_from([None, 1, 2])),
            micro_batch=draw(st.sampled_from([None, 1, 4])),
        ),
        managed=draw(st.booleans()),
        measured_peak_bytes=draw(st.none() | st.integers(1, 64 * GIB)),
    )


@given(wish=requests())
def test_any_request_has_one_answer_of_the_promised_form(wish: PlanRequest) -> None:
    outcome = plan(wish)
    assert (outcome.plan is None) != (outcome.infeasible is None)
    assert plan(PlanRequest.model_validate_json(wish.canonical())).canonical() == outcome.canonical()
    if outcome.plan is None:
        return
    made = outcome.plan
    assert made.global_batch == wish.training.global_batch
    assert not wish.managed or made.micro_batch * made.data * made.accumulation_steps == made.global_batch
    assert made.pods * made.per_pod == made.world_size == wish.devices
    assert made.tensor * made.pipeline * made.context * made.expert * made.data == made.world_size
    assert made.request_digest == wish.content_hash()
    assert ParallelPlan.model_validate(json.loads(made.canonical())).hash == made.hash
    assert made.replace(alternatives=()).replace(alternatives=made.alternatives).hash == made.hash
    for stage in made.memory:
        assert stage.reserved_bytes <= made.device_memory_bytes


@given(wish=requests())
def test_groups_cover_every_rank_exactly_once(wish: PlanRequest) -> None:
    made = plan(wish).plan
    if made is None:
        return
    coordinates = Counter(tuple(made.coordinate(rank, axis) for axis in Axis) for rank in range(made.world_size))
    assert set(coordinates.values()) == {1}
    assert len(coordinates) == made.world_size


def test_the_whole_share_of_a_rank_is_preferred_when_it_fits() -> None:
    made = planned(plan(request(training=TrainingSpec(global_batch=16))))
    assert (made.data, made.micro_batch, made.accumulation_steps, made.pods) == (4, 4, 1, 2)
    assert made.alternatives == ()
    assert made.memory_checked
    assert made.summary() == "dp4"


def test_accumulation_takes_over_where_the_share_does_not_fit() -> None:
    """16 samples of 100 MiB do not fit 2 GiB, 8 do."""
    made = planned(plan(request()))
    assert (made.micro_batch, made.accumulation_steps) == (8, 2)
    assert [a.summary for a in made.alternatives] == ["dp4 micro-batch 16"]
    assert "usable" in made.alternatives[0].reason


def test_what_does_not_fit_shows_the_arithmetic_and_what_would() -> None:
    whole = Parallelism(sharding=Sharding.NONE)
    large = request(model=MODEL.replace(parameters=7_000_000_000), parallelism=whole)
    why = plan(large).infeasible
    assert why is not None
    assert why.reason == "Infeasible"
    assert why.field == "deviceMemory"
    assert "7,000,000,000 x 4 B (fp32) = 28,000,000,000 B (26.1 GiB)" in why.message
    assert len(why.memory) == 1
    needed = device_bytes_for(why.memory[0].reserved_bytes, "kuangchao-cpu", knowledge().calibration)
    enough = CPU.replace(memory_bytes=needed)
    assert plan(large.replace(shapes=(enough,))).plan is not None
    scarce = CPU.replace(memory_bytes=needed - MIB)
    assert plan(large.replace(shapes=(scarce,))).plan is None


def test_a_pinned_micro_batch_that_does_not_fit_names_one_that_does() -> None:
    why = plan(request(parallelism=Parallelism(micro_batch=16))).infeasible
    assert why is not None
    assert (why.field, why.value, why.nearest) == ("parallelism.microBatch", "16", "8")


def test_seven_billion_on_80_gb_is_refused_and_a_small_model_is_not() -> None:
    gpu = DeviceShape(kind="gpu", model="H100", memory_bytes=80 * 10**9, per_node=8, nodes=1)
    training = TrainingSpec(global_batch=8, precision="fp16-pure")
    seven = request(devices=8, per_pod=8, shapes=(gpu,), training=training, model=MeasuredModel(parameters=7 * 10**9))
    why = plan(seven).infeasible
    assert why is not None
    assert (why.field, why.nearest) == ("training.precision", None)
    assert "of bf16, fp16, fp32 none fits these devices; with bf16 " in why.message
    assert why.memory[0].optimizer_bytes * 8 == 56 * 10**9, "over eight ranks"
    training = TrainingSpec(global_batch=8, precision="bf16")
    small = seven.replace(model=MeasuredModel(parameters=10**9), training=training)
    assert plan(small).plan is not None


def test_the_scarcest_device_that_may_get_a_pod_decides() -> None:
    large = CPU.replace(memory_bytes=64 * GIB)
    assert planned(plan(request(shapes=(large,)))).micro_batch == 16
    assert planned(plan(request(shapes=(large, CPU)))).micro_batch == 8


def test_without_a_model_nothing_is_claimed_about_memory() -> None:
    made = planned(plan(request(model=None)))
    assert not made.memory_checked
    assert made.memory == ()
    assert made.micro_batch == 16


def test_a_device_of_unknown_memory_is_not_taken_for_full_or_empty() -> None:
    made = planned(plan(request(shapes=(CPU.replace(memory_bytes=0),))))
    assert not made.memory_checked


def test_a_model_on_a_gpu_of_unknown_memory_has_no_plan() -> None:
    """What is not known to fit has none; the least that is named fits, and a tenth less does not."""
    gpu = DeviceShape(kind="gpu", model="NVIDIA H100 80GB HBM3", memory_bytes=0, per_node=8, nodes=2)
    why = plan(request(shapes=(gpu,))).infeasible
    assert why is not None
    assert (why.reason, why.field, why.value) == ("Infeasible", "deviceMemory", "0 B")
    assert why.nearest is not None
    number, unit = why.nearest.split()
    least = int(float(number) * {"MiB": MIB, "GiB": GIB}[unit])
    assert plan(request(shapes=(gpu.replace(memory_bytes=least),))).plan is not None
    assert plan(request(shapes=(gpu.replace(memory_bytes=least * 9 // 10),))).plan is None
    assert not planned(plan(request(shapes=(gpu,), model=None))).memory_checked


def test_a_gpu_that_broke_before_it_was_known_keeps_no_job_from_the_others() -> None:
    known = DeviceShape(kind="gpu", model="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB, per_node=8, nodes=1)
    broken = known.replace(model="", memory_bytes=0)
    made = planned(plan(request(shapes=(broken, known))))
    assert (made.memory_checked, made.device_memory_bytes) == (True, 80 * GIB)
    assert plan(request(shapes=(broken,))).plan is None
    assert plan(request(shapes=(known.replace(memory_bytes=0), known))).plan is None


def test_the_fewest_devices_are_looked_for_with_a_bounded_number_of_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = list[int]()

    def counted(wish: PlanRequest, *rest: Any) -> Infeasible | None:
        judged.append(wish.devices)
        return violated(wish, *rest)

    violated = laws.violated
    monkeypatch.setattr(laws, "violated", counted)
    cluster, batch = CPU.replace(nodes=2048), TrainingSpec(global_batch=8192)
    large = MeasuredModel(parameters=20_000_000_000)
    wish = request(devices=8192, per_pod=1, shapes=(cluster,), training=batch, model=large, what_if=True)
    assert plan(wish.replace(parallelism=Parallelism(objective=Objective.DEVICES))).infeasible is not None
    assert len(judged) < 200


@pytest.mark.parametrize("sharding", [None, "full"])
def test_a_timed_plan_of_a_job_has_the_hash_that_a_worker_of_0_1_0_gives_it(sharding: str | None) -> None:
    fabric = Fabric(island=8, nics=8, island_bytes_per_second=450 * 10**9)
    nodes = DeviceShape(kind="gpu", model="NVIDIA H100", memory_bytes=80 * GIB, per_node=8, nodes=2, fabric=fabric)
    model = TransformerModel(
        layers=4, hidden=1024, heads=8, ffn=4096, vocab=32000, experts=Experts(count=8, per_token=2, ffn=1024)
    )
    training = TrainingSpec(global_batch=64, sequence_length=1024)
    pins = Parallelism.model_validate({"sharding": sharding, "objective": "memory"})
    wish = request(devices=16, per_pod=8, shapes=(nodes,), model=model, training=training, parallelism=pins)
    made = planned(plan(wish))
    assert made.step is not None
    assert made.placement
    assert made.overlays
    assert made.hash == hash_by_0_1_0(made)


def test_a_command_gets_a_layout_and_no_say_about_its_batch() -> None:
    made = planned(plan(request(managed=False, model=None, devices=6, training=TrainingSpec(global_batch=32))))
    assert (made.data, made.pods, made.accumulation_steps, made.managed) == (6, 3, 1, False)
    why = plan(request(managed=False, model=MeasuredModel(parameters=10**10))).infeasible
    assert why is not None
    assert why.field == "deviceMemory"
    why = plan(request(managed=False)).infeasible
    assert why is not None
    assert (why.field, why.value, why.nearest) == ("parallelism.microBatch", "16", "8")


def test_every_unused_axis_is_rejected_with_a_reason_and_so_is_a_time_that_nobody_knows() -> None:
    *axes, objective = planned(plan(request())).rejected
    assert {axis.axis for axis in axes} == set(NEUTRAL)
    closed = {axis.axis: axis.reason for axis in axes if axis.axis not in open_axes(request())}
    assert closed == {name: closed_reason(request(), name) for name in closed}
    assert {axis.reason for axis in axes if axis.axis not in closed} == {"fits without: 1.4 GiB of 1.9 GiB"}
    assert objective.axis == "objective"
    assert "the largest micro-batch" in objective.reason


def test_a_measured_peak_gives_a_smaller_micro_batch_and_is_named() -> None:
    first = planned(plan(request()))
    second = planned(plan(request(measured_peak_bytes=3 * GIB)))
    assert second.micro_batch < first.micro_batch
    assert second.global_batch == first.global_batch
    assert "measured peak 3.0 GiB" in second.alternatives[-1].reason
    assert any("measured: peak 3.0 GiB" in line for line in second.memory[0].arithmetic)
    assert second.hash != first.hash


def test_evidence_against_a_plan_never_gives_it_again_even_if_the_peak_seems_small() -> None:
    previous = planned(plan(request()))
    again = planned(replan(previous, request(measured_peak_bytes=1)))
    assert again.micro_batch < previous.micro_batch
    third = planned(replan(again, request(measured_peak_bytes=1)))
    assert third.micro_batch < again.micro_batch


PINNED = Parallelism(tensor=2, pipeline=2)


def test_a_model_of_which_only_sizes_are_known_is_divided_as_it_is_pinned_and_no_further() -> None:
    made = planned(plan(request(parallelism=PINNED)))
    assert (made.tensor, made.pipeline, made.data, made.step) == (2, 2, 1, None)
    first, last = made.memory
    assert first.arithmetic[0] == (
        "upper bound: nothing says how this model is divided by tensor=2 and pipeline=2, so each rank is counted with"
        " all of it"
    )
    assert (
        "activations: 2 micro-batches in flight x 4 x 104,857,600 B (for each sample) = 800.0 MiB" in first.arithmetic
    )
    assert (first.parameters_bytes, last.parameters_bytes) == (4_000_000, 4_000_000)
    assert first.activations_bytes == 2 * last.activations_bytes == 2 * 4 * 100 * MIB
    unpinned = planned(plan(request(parallelism=Parallelism(task_rules=(TaskRule.TENSOR, TaskRule.PIPELINE)))))
    assert (unpinned.tensor, unpinned.pipeline) == (1, 1), "rules in the task say no sizes of its layers"
    assert not planned(plan(request(model=None, parallelism=PINNED))).memory_checked


def test_what_the_upper_bound_leaves_no_room_for_is_refused_with_it_and_what_would_fit() -> None:
    why = plan(request(parallelism=PINNED.replace(micro_batch=32))).infeasible
    assert why is not None
    assert (why.field, why.value, why.nearest) == ("parallelism.microBatch", "32", "4")
    assert "needs 10.84 GiB of 1.8 GiB usable" in why.message
    assert "upper bound: nothing says how this model is divided by tensor=2 and pipeline=2" in why.message
    assert plan(request(parallelism=PINNED.replace(micro_batch=4))).plan is not None


def test_evidence_against_a_pipeline_of_which_only_sizes_are_known_gives_a_smaller_micro_batch() -> None:
    wish = request(parallelism=PINNED, measured_peak_bytes=3 * GIB)
    first, second = planned(plan(wish.replace(measured_peak_bytes=None))), planned(plan(wish))
    assert (second.tensor, second.pipeline) == (2, 2)
    assert second.micro_batch < first.micro_batch
    assert any("measured: peak 3.0 GiB" in line for line in second.memory[0].arithmetic)


def test_evidence_works_without_a_model() -> None:
    assert planned(plan(request(model=None, measured_peak_bytes=GIB))).micro_batch == 8


def test_at_micro_batch_one_evidence_is_the_end() -> None:
    wish = request(training=TrainingSpec(global_batch=4), parallelism=Parallelism(sharding=Sharding.NONE))
    why = replan(planned(plan(wish)), wish.replace(measured_peak_bytes=2 * GIB)).infeasible
    assert why is not None
    assert "measured peak 2.0 GiB" in why.message


def test_evidence_against_a_pinned_micro_batch_does_not_override_the_pin() -> None:
    wish = request(parallelism=Parallelism(micro_batch=8))
    why = replan(planned(plan(wish)), wish.replace(measured_peak_bytes=2 * GIB)).infeasible
    assert why is not None
    assert (why.field, why.value) == ("parallelism.microBatch", "8")
    assert why.nearest is not None
    assert int(why.nearest) < 8


async def test_the_service_answers_for_every_operation_of_its_port() -> None:
    service = StrategyService()
    assert set(operations(StrategyControl)) == {"strategy.plan", "strategy.replan"}
    outcome = await service.plan(CAPABILITY, request())
    assert outcome == plan(request())
    wish = request(measured_peak_bytes=3 * GIB)
    again = await service.replan(CAPABILITY, ReplanRequest(previous=planned(outcome), request=wish))
    assert again == replan(planned(outcome), wish)


async def test_the_service_replaces_no_plan_without_evidence() -> None:
    asked = ReplanRequest(previous=planned(plan(request())), request=request())
    with pytest.raises(InvalidInputError) as refused:
        await StrategyService().replan(CAPABILITY, asked)
    assert refused.value.field == "request.measuredPeakBytes"


async def test_the_service_leaves_the_event_loop_free_and_answers_equal_requests_once() -> None:
    """The planner waits for the loop, which it could not do on the loop's own thread."""
    loop, asked = asyncio.get_running_loop(), list[PlanRequest]()

    class Waits(Planner):
        def plan(self, wish: PlanRequest) -> PlanOutcome:
            asked.append(wish)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(timeout=100)
            return super().plan(wish)

    service = StrategyService(Waits())
    answers = await asyncio.gather(*(service.plan(CAPABILITY, request()) for _ in range(3)))
    assert answers == [plan(request())] * 3
    assert asked == [request()]


async def test_what_is_known_already_waits_for_no_search() -> None:
    searching, go_on = threading.Event(), threading.Event()

    class Slow(Planner):
        def plan(self, wish: PlanRequest) -> PlanOutcome:
            if wish.devices == 8:
                searching.set()
                assert go_on.wait(timeout=100)
            return super().plan(wish)

    service = StrategyService(Slow())
    known = await service.plan(CAPABILITY, request())
    search = asyncio.create_task(service.plan(CAPABILITY, request(devices=8)))
    try:
        assert await asyncio.to_thread(searching.wait, 10)
        assert await asyncio.wait_for(service.plan(CAPABILITY, request()), timeout=100) == known
        assert not search.done()
    finally:
        go_on.set()
        assert await search == plan(request(devices=8))


async def test_the_service_remembers_the_answers_asked_for_last() -> None:
    asked = list[int]()

    class Counts(Planner):
        def plan(self, wish: PlanRequest) -> PlanOutcome:
            asked.append(wish.devices)
            return PlanOutcome()

    service, first = StrategyService(Counts()), request(devices=2)
    await service.plan(CAPABILITY, first)
    for number in range(REMEMBERED):
        await service.plan(CAPABILITY, request(devices=4 + number))
        await service.plan(CAPABILITY, first)
    assert asked == [2, *range(4, 4 + REMEMBERED)]
    await service.plan(CAPABILITY, request(devices=4))
    assert asked[-1] == 4, "the oldest answer made room"
