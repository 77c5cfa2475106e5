"""Models that are divided over real pods under plans that the planner chose, with the losses of one process."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.cluster import NAMESPACE, ROOT, items, kubectl

SPLIT = ROOT / "examples" / "split"
MOE = {
    "task": "kuangchao_worker.tasks.text:moe",
    "taskArgs": {"experts": "4"},
    "model": {
        "kind": "transformer", "layers": 2, "hidden": 64, "heads": 4, "kvHeads": 2, "ffn": 128, "vocab": 256,
        "experts": {"count": 4, "perToken": 2, "ffn": 128},
    },
    "parallelism": {"taskRules": ["pipeline", "context", "expert"], "objective": "memory", "pipeline": 2},
    "devices": {"count": 4, "perPod": 2},
}  # fmt: skip
MLP = {
    "task": "kuangchao_worker.tasks.mlp:mlp",
    "taskArgs": {"dropout": "0"},
    "model": {"kind": "measured", "parameters": 5_000_000},
    "parallelism": {"objective": "memory"},
    "devices": {"count": 2, "perPod": 1},
}
ALONE = {"pool": "cpu", "parallelism": None, "devices": {"count": 1, "perPod": 1}}
"""One process holds the whole model, for which a device of the example's pool has no room."""


@pytest.fixture(scope="module")
def pool(cluster: None) -> Iterator[None]:
    """The example's pool, beside the one of all other tests."""
    kubectl("apply", "-f", str(SPLIT / "pool.yaml"))
    yield
    kubectl("delete", "-f", str(SPLIT / "pool.yaml"), "--ignore-not-found")


def example(name: str, **spec: Any) -> dict[str, Any]:
    """The example's job under another name, with fields of its spec replaced (None: left out)."""
    made: dict[str, Any] = yaml.safe_load((SPLIT / "job.yaml").read_text())
    made["metadata"] = {"name": name, "namespace": NAMESPACE}
    made["spec"] = {key: value for key, value in {**made["spec"], **spec}.items() if value is not None}
    return made


@pytest.mark.parametrize(
    ("name", "spec", "summary", "divides"),
    [
        ("decoder", {}, "tp2pp2dp2", {"sequence": True}),
        ("experts", MOE, "pp2ep2dp2", {"recompute": "full", "sharding": "gradients"}),
        ("perceptron", MLP, "dp2", {"sharding": "full"}),
    ],
)
def test_the_planner_divides_a_model_over_pods(
    pool: None, apply, name: str, spec: dict[str, Any], summary: str, divides: dict[str, Any]
) -> None:
    job = apply(example(name, **spec))
    job.wait_phase("Complete")
    assert job.status()["planSummary"] == summary
    (plan,) = items("parallelplans", NAMESPACE, f"kuangchao.io/job={name}")
    assert plan["spec"]["plan"] | divides == plan["spec"]["plan"]
    alone = apply(example(f"{name}-alone", **{**spec, **ALONE}))
    alone.wait_phase("Complete")
    found, expected = ([float.fromhex(loss) for _, loss in sorted(j.curve().items())] for j in (job, alone))
    assert len(found) == 30
    # in fp32 another order of sums is another last bit, which grows from step to step; fp64 is compared elsewhere
    assert found[:10] == pytest.approx(expected[:10], rel=2e-4)
    assert found == pytest.approx(expected, rel=2e-2)
    assert found[-1] < found[0]
