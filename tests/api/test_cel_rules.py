"""Rules that a schema cannot say: each has a case that passes and one that the API server refuses with our words."""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from kuangchao_contracts.names import MAX_INCARNATION, MAX_JOB_NAME, MAX_PODS, pod_name, secret_name, service_name
from kuangchao_operator.api.crdgen import KINDS, root_schema
from tests.api.manifests import full_descriptor, full_plan, full_pool, minimal
from tests.api.server import ApiServer, RefusedError

MEASURED = {"kind": "measured", "parameters": 1000}
TRANSFORMER = {"kind": "transformer", "layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 100}


class Create(NamedTuple):
    """Spec fields that pass and spec fields that are refused with `message`."""

    message: str
    good: dict[str, Any]
    bad: dict[str, Any]


CREATES = [
    Create(
        "must be a multiple of devices.perPod",
        {"devices": {"count": 8, "perPod": 4}},
        {"devices": {"count": 8, "perPod": 3}},
    ),
    Create("devices.min must not exceed", {"devices": {"count": 2, "min": 2}}, {"devices": {"count": 2, "min": 3}}),
    Create("devices.max must not be below", {"devices": {"count": 2, "max": 2}}, {"devices": {"count": 2, "max": 1}}),
    Create("exactly one of spec.task and spec.command", {"task": None, "command": ["a.py"]}, {"command": ["a.py"]}),
    Create("exactly one of spec.task and spec.command", {"task": "a:b"}, {"task": None}),
    Create(
        "spec.checkpoint.storage is needed",
        {"checkpoint": {"everySteps": 1, "storage": {"claimName": "c"}}},
        {"checkpoint": {"everySteps": 1}},
    ),
    Create("spec.checkpoint.storage is needed", {"checkpoint": {"keep": 3}}, {"checkpoint": {"everyMinutes": 1}}),
    Create(
        "tensor 3 x pipeline 1 x context 1 x data 1 must divide devices.count 8",
        {"parallelism": {"tensor": 2, "pipeline": 4}},
        {"parallelism": {"tensor": 3}},
    ),
    Create("must divide devices.count", {"parallelism": {"data": 8}}, {"parallelism": {"data": 4, "context": 4}}),
    Create(
        "must divide devices.count",
        {},
        {"parallelism": dict.fromkeys(("tensor", "pipeline", "data", "context"), 2**20)},
    ),
    Create(
        "must equal devices.count",
        {"parallelism": {"mode": "Manual", "tensor": 2, "data": 4}},
        {"parallelism": {"mode": "Manual", "tensor": 2}},
    ),
    Create(
        "one number for each of its pipeline x virtualStages",
        {"parallelism": {"pipeline": 2, "virtualStages": 2, "stageLayers": [1, 2, 2, 1]}},
        {"parallelism": {"pipeline": 2, "stageLayers": [1, 2, 2, 1]}},
    ),
    Create(
        "one number for each of its pipeline x virtualStages",
        {"parallelism": {"pipeline": 2, "stageLayers": [3, 1]}},
        {"parallelism": {"stageLayers": [3, 1]}},
    ),
    Create(
        "zb-v has 2 virtualStages",
        {"parallelism": {"schedule": "zb-v", "virtualStages": 2}},
        {"parallelism": {"schedule": "zb-v", "virtualStages": 3}},
    ),
    Create(
        "interleaved needs virtualStages of 2 or more",
        {"parallelism": {"schedule": "interleaved"}},
        {"parallelism": {"schedule": "interleaved", "virtualStages": 1}},
    ),
    Create(
        "takes no virtualStages",
        {"parallelism": {"schedule": "gpipe", "virtualStages": 2}},
        {"parallelism": {"schedule": "1f1b", "virtualStages": 2}},
    ),
    Create(
        "takes no virtualStages",
        {"parallelism": {"schedule": "zb-h2", "virtualStages": 1}},
        {"parallelism": {"schedule": "zb-h1", "virtualStages": 2}},
    ),
    Create(
        "quotaPercent of all channels",
        {"channels": [{"name": "a", "quotaPercent": 60}, {"name": "b", "quotaPercent": 40}]},
        {"channels": [{"name": "a", "quotaPercent": 60}, {"name": "b", "quotaPercent": 41}]},
    ),
    Create(
        "spec.plugins needs spec.task",
        {"plugins": [{"name": "compression", "options": {"method": "int8"}}]},
        {"plugins": [{"name": "compression"}], "task": None, "command": ["a.py"]},
    ),
    Create(
        "spec.plugins needs spec.task",
        {"plugins": [], "task": None, "command": ["a.py"]},
        {"plugins": [{"name": "a"}], "task": None, "command": ["a.py"]},
    ),
    Create(
        "spec.parallelism.taskRules needs spec.task",
        {"parallelism": {"taskRules": ["tensor", "pipeline"]}},
        {"parallelism": {"taskRules": ["tensor"]}, "task": None, "command": ["a.py"]},
    ),
    Create(
        "spec.parallelism.taskRules needs spec.task",
        {"parallelism": {"taskRules": []}, "task": None, "command": ["a.py"]},
        {"parallelism": {"taskRules": ["expert"]}, "task": None, "command": ["a.py"]},
    ),
    Create(
        "parallelism.taskRules.*supported values",
        {"parallelism": {"taskRules": ["tensor", "sequence", "pipeline", "context", "expert"]}},
        {"parallelism": {"taskRules": ["data"]}},
    ),
    Create(
        "Duplicate value",
        {"parallelism": {"taskRules": ["pipeline", "tensor"]}},
        {"parallelism": {"taskRules": ["tensor", "tensor"]}},
    ),
    Create("spec.plugins.*name", {"plugins": [{"name": "int8"}]}, {"plugins": [{"name": "kc:state"}]}),
    Create("spec.plugins.*at most 1", {"plugins": [{"name": "a"}]}, {"plugins": [{"name": "a"}, {"name": "b"}]}),
    Create("kind measured needs parameters", {"model": MEASURED}, {"model": {"kind": "measured"}}),
    Create("kind measured does not take", {"model": MEASURED}, {"model": MEASURED | {"layers": 2}}),
    Create("kind transformer needs", {"model": TRANSFORMER}, {"model": {"kind": "transformer", "layers": 2}}),
    Create("kind transformer does not take", {"model": TRANSFORMER}, {"model": TRANSFORMER | {"parameters": 5}}),
    # List keys: two entries of one name would be two answers to one question.
    Create(
        "Duplicate value",
        {"channels": [{"name": "a", "quotaPercent": 1}]},
        {"channels": [{"name": "a", "quotaPercent": 1}] * 2},
    ),
    Create(
        "Duplicate value", {"template": {"env": [{"name": "A"}]}}, {"template": {"env": [{"name": "A"}, {"name": "A"}]}}
    ),
]


class Change(NamedTuple):
    """A running job's spec, a merge patch that passes and one that is refused with `message`."""

    message: str
    spec: dict[str, Any]
    good: dict[str, Any]
    bad: dict[str, Any]


CHANGES = [
    Change("spec.pool cannot change", {}, {"pool": "cpu"}, {"pool": "gpu"}),
    Change("spec.managedBy cannot change", {"managedBy": "a.io/b"}, {"managedBy": "a.io/b"}, {"managedBy": None}),
    Change("spec.managedBy cannot change", {}, {"priority": "debug"}, {"managedBy": "a.io/b"}),
    Change(
        "spec.retryGeneration can only rise", {"retryGeneration": 1}, {"retryGeneration": 2}, {"retryGeneration": 0}
    ),
    Change("spec.task cannot change", {}, {"taskArgs": {"a": "b"}}, {"task": "other:train"}),
    Change(
        "may change only while spec.suspend is true",
        {},
        {"suspend": True, "devices": {"count": 16}},
        {"devices": {"count": 16}},
    ),
    Change("may change only while spec.suspend is true", {}, {"fault": {"maxRestarts": 9}}, {"training": {"steps": 7}}),
    Change("may change only while spec.suspend is true", {}, {"suspend": True}, {"parallelism": {"data": 2}}),
    Change(
        "spec.plugins may change only while spec.suspend is true",
        {},
        {"suspend": True, "plugins": [{"name": "compression"}]},
        {"plugins": [{"name": "compression"}]},
    ),
    Change(
        "spec.plugins may change only while spec.suspend is true",
        {"plugins": [{"name": "compression"}]},
        {"plugins": [{"name": "compression"}]},
        {"plugins": [{"name": "compression", "options": {"method": "bf16"}}]},
    ),
    Change(
        "spec.checkpoint.storage cannot change while the job runs",
        {"checkpoint": {"storage": {"claimName": "c", "path": "a"}}},
        {"checkpoint": {"keep": 3}},
        {"checkpoint": {"storage": {"path": "b"}}},
    ),
    Change(
        "spec.checkpoint.storage cannot change while the job runs",
        {"checkpoint": {"storage": {"claimName": "c"}}},
        {"suspend": True},
        {"suspend": True, "checkpoint": {"storage": {"claimName": "d"}}},
    ),
    Change(
        "spec.checkpoint.storage cannot change while the job runs",
        {},
        {"fault": {"maxRestarts": 9}},
        {"checkpoint": {"storage": {"claimName": "d"}}},
    ),
    Change(
        "must be a multiple of devices.perPod",
        {"suspend": True},
        {"devices": {"perPod": 2}},
        {"devices": {"perPod": 3}},
    ),
]


def _rules(schema: Any) -> Iterator[str]:
    """Texts of all rules in a schema, whether plain or expressions."""
    if isinstance(schema, dict):
        for entry in schema.get("x-kubernetes-validations", ()):
            yield entry.get("message") or entry["messageExpression"]
        for child in schema.values():
            yield from _rules(child)
    elif isinstance(schema, list):
        for child in schema:
            yield from _rules(child)


ELSEWHERE = ("must be a DNS label", "a plan is immutable", "a descriptor is immutable", "deviceType cannot change")
"""Rules with tests of their own below."""


def test_every_rule_has_a_case() -> None:
    texts = [text for model in KINDS for text in _rules(root_schema(model))]
    assert len(texts) > 15
    messages = [*(case.message for case in (*CREATES, *CHANGES)), *ELSEWHERE]
    assert [text for text in texts if not any(message in text for message in messages)] == []


@pytest.mark.parametrize("case", CREATES, ids=lambda case: case.message[:30])
def test_create(api_server: ApiServer, case: Create) -> None:
    api_server.create(minimal(**case.good), dry=True)
    with pytest.raises(RefusedError, match=case.message):
        api_server.create(minimal(**case.bad), dry=True)


@pytest.fixture
def job(api_server: ApiServer) -> Iterator[str]:
    """A suspended job, so that nothing but the rule at hand can refuse a change."""
    api_server.create(minimal(suspend=True, task="tasks:train") | {"metadata": {"name": "updated"}})
    yield "updated"
    api_server.kubectl("delete", "trainingjob", "updated")


@pytest.mark.parametrize("case", CREATES, ids=lambda case: case.message[:30])
def test_update_is_validated_like_create(api_server: ApiServer, job: str, case: Create) -> None:
    """kubeflow/trainer#3686."""
    current = api_server.get("TrainingJob", job)
    with pytest.raises(RefusedError, match=case.message):
        api_server.replace({**current, "spec": minimal(**case.bad)["spec"] | {"suspend": True}}, dry=True)


@pytest.mark.parametrize("case", CHANGES, ids=lambda case: case.message[:30])
def test_change(api_server: ApiServer, case: Change) -> None:
    """kubeflow/trainer#3686."""
    api_server.create(minimal(**case.spec) | {"metadata": {"name": "changed"}})
    try:
        api_server.patch("TrainingJob", "changed", {"spec": case.good}, dry=True)
        with pytest.raises(RefusedError, match=case.message):
            api_server.patch("TrainingJob", "changed", {"spec": case.bad}, dry=True)
    finally:
        api_server.kubectl("delete", "trainingjob", "changed")


def test_the_write_that_resumes_a_job_may_change_it(api_server: ApiServer, job: str) -> None:
    change = {"suspend": False, "training": {"steps": 7}, "parallelism": {"data": 2}, "devices": {"count": 4}}
    made = api_server.patch("TrainingJob", job, {"spec": change}, dry=True)
    assert (made["spec"]["suspend"], made["spec"]["training"]["steps"], made["spec"]["devices"]["count"]) == (
        False,
        7,
        4,
    )


@pytest.mark.parametrize("name", ["a", "job-1", "a" * MAX_JOB_NAME])
def test_names_that_children_can_be_made_from(api_server: ApiServer, name: str) -> None:
    """kubernetes-sigs/jobset#408."""
    api_server.create(minimal() | {"metadata": {"name": name}}, dry=True)
    uid = "5d3c0a2e-0000-4000-8000-000000000000"
    children = [pod_name(name, uid, MAX_INCARNATION, MAX_PODS - 1), service_name(name, uid)]
    assert max(map(len, children)) <= 63, "pod and Service names become DNS labels and label values"
    assert len(secret_name(name, uid, MAX_INCARNATION)) <= 253


@pytest.mark.parametrize("name", ["a" * (MAX_JOB_NAME + 1), "a" * 63, "b" * 78, "1job", "a.b", "9"])
def test_names_too_long_or_no_label_are_refused_with_the_limit(api_server: ApiServer, name: str) -> None:
    """kubeflow/trainer#1101, ray-project/kuberay#3980."""
    with pytest.raises(RefusedError, match=f"DNS label of at most {MAX_JOB_NAME}"):
        api_server.create(minimal() | {"metadata": {"name": name}}, dry=True)


@pytest.mark.parametrize("name", ["Job", "job_1", "-job", "c" * 254])
def test_names_that_are_no_names_are_refused(api_server: ApiServer, name: str) -> None:
    with pytest.raises(RefusedError, match=r"metadata\.name"):
        api_server.create(minimal() | {"metadata": {"name": name}}, dry=True)


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", 2_147_483_648, None])
def test_device_counts_that_were_never_numbers_of_devices(api_server: ApiServer, count: Any) -> None:
    """kubeflow/trainer#3809."""
    with pytest.raises(RefusedError, match="count"):
        api_server.create(minimal(devices={"count": count}), dry=True)


def test_a_status_write_cannot_change_the_spec(api_server: ApiServer, job: str) -> None:
    """kubeflow/trainer#3686."""
    made = api_server.patch(
        "TrainingJob", job, {"spec": {"pool": "gpu"}, "status": {"attempt": 4}}, subresource="status"
    )
    assert (made["spec"]["pool"], made["status"]["attempt"]) == ("cpu", 4)


def test_a_spec_write_cannot_change_the_status(api_server: ApiServer, job: str) -> None:
    made = api_server.patch("TrainingJob", job, {"spec": {"priority": "debug"}, "status": {"attempt": 9}})
    assert made["spec"]["priority"] == "debug"
    assert "attempt" not in made.get("status", {})


@pytest.mark.parametrize("status", [{"attempt": -1}, {"phase": "Flying"}, {"conditions": [{"type": "Ready"}]}])
def test_status_is_validated(api_server: ApiServer, job: str, status: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="status"):
        api_server.patch("TrainingJob", job, {"status": status}, subresource="status", dry=True)


@pytest.mark.parametrize(
    ("manifest", "change", "message"),
    [
        (full_plan(), {"summary": "dp4"}, "a plan is immutable"),
        (full_descriptor(), {"generation": 2}, "a descriptor is immutable"),
        (full_pool(), {"deviceType": "cpu"}, "deviceType cannot change"),
    ],
    ids=["plan", "descriptor", "pool"],
)
def test_immutable_fields(
    api_server: ApiServer, manifest: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    manifest = copy.deepcopy(manifest)
    manifest["metadata"]["name"] = "immutable"
    api_server.create(manifest)
    api_server.patch(manifest["kind"], "immutable", {"metadata": {"labels": {"a": "b"}}}, dry=True)
    with pytest.raises(RefusedError, match=message):
        api_server.patch(manifest["kind"], "immutable", {"spec": change}, dry=True)


def test_columns_show_what_the_status_says(api_server: ApiServer, job: str) -> None:
    status = {"phase": "Running", "planSummary": "dp8", "ready": "4/4", "restartBudget": "0/3", "progressText": "5/100"}
    api_server.patch("TrainingJob", job, {"status": status}, subresource="status")
    header, row = api_server.kubectl("get", "tjob", job).splitlines()
    assert header.split() == ["NAME", "STATE", "PLAN", "READY", "RESTARTS", "PROGRESS", "AGE"]
    assert row.split()[:-1] == [job, *status.values()]
