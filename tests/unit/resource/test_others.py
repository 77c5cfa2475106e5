"""What other pods ask for, as the scheduler counts it."""

from typing import Any

from kuangchao_contracts.units import milli, to_bytes
from kuangchao_operator.layers.resource.others import pod_request, requests_of_others


def container(cpu: str | None = None, memory: str | None = None, **fields: Any) -> dict[str, Any]:
    asked = {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    return {"name": "c", "resources": {"requests": asked}, **fields}


def pod(*containers: dict[str, Any], phase: str = "Running", labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {"metadata": {"labels": labels}, "spec": {"containers": list(containers)}, "status": {"phase": phase}}


def test_pods_of_our_jobs_and_pods_that_ended_do_not_count() -> None:
    pods = [
        pod(container("100m", "64Mi"), container("250m")),
        pod(container("1", "1Gi"), phase="Pending"),
        pod(container("8"), labels={"kuangchao.io/job": "digits"}),
        pod(container("8"), phase="Succeeded"),
        pod(container("8"), phase="Failed"),
        pod({"name": "best-effort"}),
    ]
    assert requests_of_others(pods) == (1350, 2**30 + 64 * 2**20)
    assert requests_of_others([]) == (0, 0)


def test_init_containers_count_when_they_are_hungrier_than_what_follows() -> None:
    spec: dict[str, Any] = {"containers": [container("1")], "initContainers": [container("3"), container("2")]}
    assert pod_request(spec, "cpu", milli) == 3000
    spec["containers"] = [container("2"), container("2")]
    assert pod_request(spec, "cpu", milli) == 4000


def test_side_cars_run_beside_everything_after_them() -> None:
    spec = {
        "containers": [container("1")],
        "initContainers": [container("5"), container("1", restartPolicy="Always"), container("4")],
    }
    assert pod_request(spec, "cpu", milli) == 5000
    spec["containers"] = [container("6")]
    assert pod_request(spec, "cpu", milli) == 7000


def test_requests_of_the_pod_as_a_whole_and_overhead() -> None:
    spec: dict[str, Any] = {"containers": [container("1", "1Gi")], "overhead": {"cpu": "50m", "memory": "10Mi"}}
    assert pod_request(spec, "cpu", milli) == 1050
    spec["resources"] = {"requests": {"cpu": "3"}}
    assert pod_request(spec, "cpu", milli) == 3050
    assert pod_request(spec, "memory", to_bytes) == 2**30 + 10 * 2**20
