"""The command line and the cluster give one answer: the same bytes for the same job on the same resources."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from kuangchao_contracts.api import ResourceDescriptorObject, ResourcePool, TrainingJob
from kuangchao_contracts.base import canonical_json
from kuangchao_contracts.plan import PlanOutcome, PlanRequest
from kuangchao_operator.cli.main import app
from kuangchao_operator.layers.execution.decide import decide
from kuangchao_operator.layers.execution.model import NodeSlots, Plan, PoolFacts
from kuangchao_operator.layers.resource.decide import shapes
from kuangchao_operator.layers.strategy.explain import plan_json
from kuangchao_operator.layers.strategy.service import StrategyService
from tests.unit.cli.manifests import GOOD
from tests.unit.cli.test_commands import descriptor, pool
from tests.unit.execution.world import World
from tests.unit.strategy.asking import CAPABILITY

DECODER = {
    "kind": "transformer",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kvHeads": 8,
    "ffn": 14336,
    "vocab": 128256,
}
TRAINING = {"globalBatch": 64, "sequenceLength": 4096, "precision": "bf16"}


def linked(node: str, kind: str) -> dict[str, Any]:
    """A node of eight GPUs, every two of them joined by links of a kind."""
    made = descriptor(node, gpus=8)
    pairs = [(a, b) for a in range(8) for b in range(a + 1, 8)]
    made["spec"]["links"] = [{"first": a + 1, "second": b + 1, "kind": kind} for a, b in pairs]
    return made


CPUS = [pool("here"), descriptor("b"), descriptor("a", memory=2**33)]
GPUS = [
    pool("here", deviceType="gpu"),
    linked("b", "NV18"),
    linked("c", "PIX"),
    linked("a", "PIX"),
    linked("d", "PIX"),
]
CASES = {
    "measured on CPUs": ({}, CPUS),
    "a batch that does not divide": ({"training": {"globalBatch": 63}}, CPUS),
    "a decoder on CPUs": ({"model": {**DECODER, "layers": 2, "hidden": 256, "ffn": 512}, "training": TRAINING}, CPUS),
    "what does not fit": ({"model": DECODER, "training": TRAINING, "devices": {"count": 32, "perPod": 8}}, GPUS),
    "a small one on GPUs": (
        {"model": {**DECODER, "layers": 4}, "training": TRAINING, "devices": {"count": 32, "perPod": 8}},
        GPUS,
    ),
}


def manifest(changes: dict[str, Any]) -> dict[str, Any]:
    metadata = {**GOOD["metadata"], "namespace": "team", "uid": "uid-1"}
    return {**GOOD, "metadata": metadata, "spec": {**GOOD["spec"], "pool": "here", **changes}}


def asked_in_cluster(job: TrainingJob, objects: list[dict[str, Any]]) -> PlanRequest:
    """What the operator's decision asks strategy for; the cache hands descriptors over in an order of its own."""
    spec = next(ResourcePool.model_validate(one).spec for one in objects if one["kind"] == "ResourcePool")
    nodes = [ResourceDescriptorObject.model_validate(one).spec for one in objects if one["kind"] != "ResourcePool"]
    slots = tuple(NodeSlots(node=node.node, devices=8) for node in nodes)
    facts = PoolFacts(name="here", spec=spec, nodes=slots, shapes=shapes(spec, reversed(nodes)))
    actions = decide(World(job, facts).snapshot()).actions
    return next(action.request for action in actions if isinstance(action, Plan))


async def answered(request: PlanRequest) -> PlanOutcome:
    """As it comes over the gate: through its bytes."""
    return await StrategyService().plan(CAPABILITY, PlanRequest.model_validate_json(request.canonical()))


@pytest.mark.parametrize(("changes", "objects"), CASES.values(), ids=CASES)
async def test_command_line_and_cluster_give_the_same_bytes(
    changes: dict[str, Any], objects: list[dict[str, Any]], tmp_path: Path
) -> None:
    made = manifest(changes)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(made))
    (tmp_path / "resources.yaml").write_text(yaml.safe_dump_all(objects))
    arguments = ["plan", str(tmp_path / "job.yaml"), "-o", "json", "--resources", str(tmp_path / "resources.yaml")]
    shown = json.loads(CliRunner().invoke(app, arguments).stdout)
    outcome = await answered(asked_in_cluster(TrainingJob.model_validate(made), objects))
    assert canonical_json(shown) == canonical_json(plan_json(outcome))
    assert shown["hash"] == (outcome.plan.hash if outcome.plan is not None else None)
    assert shown["feasible"] is (outcome.plan is not None)
