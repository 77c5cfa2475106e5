"""ParallelPlan: the plan of one job, created at admission. Immutable."""

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from kuangchao_contracts.api.meta import Column, CustomObject, rules
from kuangchao_contracts.base import Contract, Name
from kuangchao_contracts.plan import ParallelPlan


class ParallelPlanSpec(Contract):
    """The plan and its identity."""

    model_config = ConfigDict(
        json_schema_extra=rules(("self == oldSelf", "a plan is immutable; a change is a new plan"))
    )

    job: Name
    hash: Annotated[str, Field(max_length=64, pattern="^[0-9a-f]{64}$")]
    summary: Annotated[str, Field(max_length=64)]
    plan: ParallelPlan


class ParallelPlanObject(CustomObject):
    """kuangchao.io/v1alpha1 ParallelPlan."""

    plural: ClassVar[str] = "parallelplans"
    short_names: ClassVar[tuple[str, ...]] = ("pplan",)
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="Job", type="string", json_path=".spec.job"),
        Column(name="Plan", type="string", json_path=".spec.summary"),
        Column(name="Ranks", type="integer", json_path=".spec.plan.worldSize"),
        Column(name="Micro-batch", type="integer", json_path=".spec.plan.microBatch"),
        Column(name="Age", type="date", json_path=".metadata.creationTimestamp"),
    )

    kind: Literal["ParallelPlan"] = "ParallelPlan"
    spec: ParallelPlanSpec
