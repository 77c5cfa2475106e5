"""From a setting to the plan that says it, and back. Pure."""

from kuangchao_contracts.parallel import Objective, StepEstimate
from kuangchao_contracts.plan import (
    Alternative,
    DeviceShape,
    ParallelPlan,
    PlanRequest,
    RejectedAxis,
    TransformerModel,
)
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.setting import SHAPELESS, Setting
from kuangchao_operator.layers.strategy.groups import mesh, overlays
from kuangchao_operator.layers.strategy.placement import rules
from kuangchao_operator.layers.strategy.schedule.simulation import even_bubble_ppm
from kuangchao_operator.layers.strategy.search.need import Memory
from kuangchao_operator.layers.strategy.search.rank import Scored
from kuangchao_operator.layers.strategy.search.space import FRAMEWORK
from kuangchao_operator.layers.strategy.search.variants import saved


def setting_of(plan: ParallelPlan, request: PlanRequest) -> Setting:
    """What a plan for this request is computed from."""
    model, training = request.model, request.training
    layout = Layout(
        tensor=plan.tensor,
        pipeline=plan.pipeline,
        context=plan.context,
        expert=plan.expert,
        expert_tensor=plan.expert_tensor,
        data=plan.data,
        virtual=plan.virtual_stages,
        sequence=plan.sequence,
        stage_layers=plan.stage_layers or None,
        shard_ranks=plan.shard_ranks,
    )
    plain = Setting(
        model=model if isinstance(model, TransformerModel) else SHAPELESS,
        layout=layout,
        sequence_length=training.sequence_length or 1,
        micro_batch=plan.micro_batch,
        micro_batches=plan.accumulation_steps,
        precision=training.precision,
        optimizer=training.optimizer,
        backend=FRAMEWORK[request.shapes[0].kind],
        schedule=plan.schedule,
        logits_joined=True,
        plain_ddp=not request.managed,
    )
    return saved(plain, plan.sharding, plan.recompute)


def plan_of(
    scored: Scored,
    memory: Memory,
    request: PlanRequest,
    shape: DeviceShape,
    digest: str,
    alternatives: tuple[Alternative, ...] = (),
    rejected: tuple[RejectedAxis, ...] = (),
) -> ParallelPlan:
    """The plan of a setting, for a request of that digest, with its needs, its time and what it was preferred to."""
    setting, layout = scored.setting, scored.setting.layout
    stages = memory.stages(setting)
    step = None if scored.step is None else StepEstimate(**scored.step._asdict())
    return ParallelPlan(
        world_size=layout.world,
        per_pod=request.per_pod,
        pods=layout.world // request.per_pod,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        data=layout.data,
        context=layout.context,
        expert=layout.expert,
        sequence=layout.sequence,
        virtual_stages=layout.virtual,
        micro_batch=setting.micro_batch,
        accumulation_steps=setting.micro_batches,
        global_batch=request.training.global_batch,
        recompute=setting.recompute,
        sharding=setting.sharding,
        managed=request.managed,
        groups=mesh(layout),
        memory_checked=bool(stages),
        memory=stages,
        device_memory_bytes=shape.memory_bytes,
        step_microseconds=None if step is None else step.step_us,
        bubble_ppm=_even_bubble(setting) if step is None else step.bubble_ppm,
        alternatives=alternatives,
        rejected=rejected,
        request_digest=digest,
        schedule=setting.schedule,
        stage_layers=layout.stage_layers or (),
        expert_tensor=layout.expert_tensor,
        shard_ranks=layout.shard_ranks,
        objective=request.parallelism.objective or Objective.TIME,
        step=step,
        overlays=overlays(layout, layout.shard_ranks, moe=setting.model.experts is not None),
        placement=rules(layout, shape, request.per_pod),
    )


def _even_bubble(setting: Setting) -> int:
    """Where no time is known: the bubble of equal passes."""
    layout = setting.layout
    return even_bubble_ppm(setting.schedule, layout.pipeline, layout.virtual, setting.micro_batches)


def member(setting: Setting, name: str) -> object:
    """The value of a member of `parallelism`, by its wire name, in a setting."""
    layout = setting.layout
    values: dict[str, object] = {
        "microBatch": setting.micro_batch,
        "recompute": setting.recompute,
        "sharding": setting.sharding,
        "schedule": setting.schedule,
        "virtualStages": layout.virtual,
        "stageLayers": layout.stage_layers or (),
    }
    return values[name] if name in values else getattr(layout, name)
