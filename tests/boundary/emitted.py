"""Every plan that the planner can make for the reference tasks on up to eight ranks, from the planner's own search.

Which of them it takes depends on memory, objective and devices; here are all that any of these could lead to.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from kuangchao_contracts.plan import DeviceShape, ParallelPlan, PlanRequest
from kuangchao_contracts.rules import ParallelRules, TaskRule
from kuangchao_operator.layers.strategy import laws, shipped
from kuangchao_operator.layers.strategy.search.layouts import layouts, sketches
from kuangchao_operator.layers.strategy.search.plans import plan_of
from kuangchao_operator.layers.strategy.search.rank import Scored
from kuangchao_operator.layers.strategy.search.trial import trial
from kuangchao_operator.layers.strategy.search.variants import pipelines, savings
from kuangchao_worker.tasks import load_task
from kuangchao_worker.tasks.found.find import joined
from kuangchao_worker.tasks.measure import measure

MOST: Final = 8
SMALL = {"layers": "4", "hidden": "32", "heads": "4", "kvHeads": "2", "ffn": "64", "sequence": "16", "windows": "96"}
TASKS: dict[str, dict[str, str]] = {
    "kuangchao_worker.tasks.text:transformer": SMALL,
    "kuangchao_worker.tasks.text:moe": SMALL,
    "kuangchao_worker.tasks.mlp:mlp": {"dropout": "0"},
    "kuangchao_worker.tasks.digits:digits": {"dropout": "0"},
}
PINS: tuple[dict[str, Any], ...] = (
    {},
    {"context": 2},
    {"tensor": 2, "sequence": False},
    {"pipeline": 2, "schedule": "gpipe"},
    {"schedule": "zb-h1"},
    {"schedule": "zb-v"},
    {"pipeline": 2, "stageLayers": [3, 1]},
    {"pipeline": 4, "stageLayers": [0, 2, 2, 0]},
    {"context": 2, "pipeline": 2},
    {"context": 2, "tensor": 2},
    {"expert": 1, "tensor": 2},
)
"""What the search passes over, or does not come to, unless it is pinned."""


class Reference(NamedTuple):
    """A task, its model without weights, and what it says of both, or its model shows."""

    name: str
    args: dict[str, str]
    module: nn.Module
    rules: ParallelRules
    spec: dict[str, Any]
    """What `kuangchao describe-model` prints."""


def references() -> list[Reference]:
    """Each reference task once."""
    found = []
    for name, args in TASKS.items():
        task, said = load_task(name, args), measure(name, args)
        with torch.device("meta"):
            module = task.model()
        spec = {"model": said.model.wire(), "parallelism": {"taskRules": [rule.value for rule in said.rules]}}
        found.append(Reference(name, args, module, joined(task.rules, said.found), spec))
    return found


def requests(reference: Reference, worlds: Iterable[int], batches: Iterable[int]) -> Iterator[PlanRequest]:
    """For each number of ranks, batch and pins for which the task has rules, where no law is broken."""
    named = set(reference.spec["parallelism"]["taskRules"])
    known = [pins for pins in PINS if {name for name in pins if name in set(TaskRule)} <= named | {"expert"}]
    for world, batch in itertools.product(worlds, batches):
        for per_pod, pins in itertools.product(sorted({world, min(2, world)}), known):
            request = asked(reference, world, per_pod=per_pod, batch=batch, **pins)
            if laws.violated(request) is None:
                yield request


def asked(reference: Reference, world: int, *, per_pod: int, batch: int, memory: int = 0, **pins: Any) -> PlanRequest:
    """A job as one writes it after `describe-model`, on devices with so many bytes each (0: not known)."""
    shape = DeviceShape(kind="cpu", memory_bytes=memory, per_node=max(2, per_pod), nodes=MOST)
    return PlanRequest.model_validate(
        {
            "devices": world,
            "perPod": per_pod,
            "shapes": [shape],
            "model": reference.spec["model"],
            "training": {"globalBatch": batch, "sequenceLength": int(SMALL["sequence"])},
            "parallelism": {**reference.spec["parallelism"], **pins},
        }
    )


def emitted(request: PlanRequest) -> Iterator[ParallelPlan]:
    """Every plan that the search goes through for a request: one of these it takes, whatever fits."""
    tried = trial(request, shipped.knowledge())
    space, memory = tried.search.space, tried.memory
    for layout in layouts(space):
        for sketch in sketches(space, layout):
            for order in pipelines(space, sketch):
                for setting in savings(space, order):
                    yield plan_of(Scored(setting, 0, None), memory, request, tried.shape, "0" * 64)
