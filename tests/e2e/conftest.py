"""e2e fixtures: one embedded cluster with the chart installed, one namespace of jobs, manifests from the example."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.authority import SPEC, STEPS, Walk, WalkingJob
from tests.e2e.cluster import NAMESPACE, ROOT, Job, kc, kubectl

CODE = ROOT / "tests" / "e2e" / "user_code"
DEPLOY_SECONDS = 5_400
TEST_SECONDS = 3_600
"""Both bound a hang and are no claims about speed."""
Manifest = Callable[..., dict[str, Any]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test waits for cluster and images, and the limits of the tests' own waits add up."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(DEPLOY_SECONDS + TEST_SECONDS))


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """The embedded cluster with images pushed and the chart installed; left as it was found."""
    was_up = Path("/run/netns/kc-cp").exists()
    subprocess.run([str(ROOT / "hack" / "deploy.sh"), NAMESPACE], check=True, timeout=DEPLOY_SECONDS)
    yield
    if not was_up or os.environ.get("CI"):
        kc("down", "--purge")


def build(name: str, **spec: Any) -> dict[str, Any]:
    """A TrainingJob from the digits example: name, then spec fields that replace the example's (None: leave out)."""
    made: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())
    made["metadata"] = {"name": name, "namespace": NAMESPACE}
    for key, value in spec.items():
        if isinstance(value, dict) and isinstance(made["spec"].get(key), dict):
            made["spec"][key] = {**made["spec"][key], **value}
        else:
            made["spec"][key] = value
    made["spec"] = {k: v for k, v in made["spec"].items() if v is not None}
    return made


@pytest.fixture
def manifest() -> Manifest:
    """`build`, for tests that need nothing else of this module."""
    return build


@pytest.fixture
def apply(cluster: None) -> Iterator[Callable[[dict[str, Any]], Job]]:
    """Applies a manifest and deletes the job afterwards, whatever happened."""
    jobs: list[Job] = []

    def run(made: dict[str, Any]) -> Job:
        owner = made["spec"].get("access", {}).get("owner")
        job = Job(made["metadata"]["namespace"], made["metadata"]["name"], owner)
        job.delete()  # a demo or an interrupted run may have left one
        jobs.append(job)
        kubectl("apply", "-f", "-", *job.by, stdin=yaml.safe_dump(made))
        return job

    yield run
    kc("heal")
    for job in jobs:
        job.delete()


def user_code_mounted() -> dict[str, Any]:
    """spec.template that mounts user code from a ConfigMap, the usual way without an image of one's own."""
    made = kubectl(
        "create", "configmap", "user-code", "-n", NAMESPACE, f"--from-file={CODE}", "--dry-run=client", "-o", "yaml"
    )
    kubectl("apply", "-f", "-", stdin=made)
    return {
        "volumes": [{"name": "code", "configMap": {"name": "user-code"}}],
        "volumeMounts": [{"name": "code", "mountPath": "/code", "readOnly": True}],
        "env": [{"name": "PYTHONPATH", "value": "/code"}],
    }


@pytest.fixture
def user_code(cluster: None) -> dict[str, Any]:
    """`user_code_mounted`, for tests that need nothing else of this module."""
    return user_code_mounted()


@pytest.fixture(scope="session")
def reference(cluster: None) -> dict[int, str]:
    """Loss curve of the example itself, which nothing disturbs or slows down."""
    job = Job(NAMESPACE, "unhurried")
    job.delete()
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump(build(job.name, **SPEC)))
    try:
        job.wait_phase("Complete")
        curve = job.curve()
    finally:
        job.delete()
    assert len(curve) == STEPS
    return curve


@pytest.fixture
def walk(apply: Callable[..., Job], user_code: dict[str, Any]) -> Iterator[Walk]:
    """Starts a job of two pods that takes so many seconds longer for each step, and ever more, until it is let run."""
    started: list[WalkingJob] = []

    def start(name: str, pace: float, **spec: Any) -> WalkingJob:
        job = WalkingJob(NAMESPACE, name)
        job.mark.unlink(missing_ok=True)
        started.append(job)
        args = {"pace": str(pace), "hurry": f"/checkpoints/{job.mark.name}"}
        apply(build(name, **{**SPEC, "task": "paced:paced", "taskArgs": args, "template": user_code, **spec}))
        return job

    yield start
    for job in started:
        job.mark.unlink(missing_ok=True)
