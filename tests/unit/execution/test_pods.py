"""Manifests: restricted, pinned to their node, no token in sight, bounded in size, overridden only where allowed."""

import base64
import json
from typing import Any

import pytest

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.podtemplate import EnvVar, PodTemplate
from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
from kuangchao_contracts.api.trainingjob import CheckpointPolicy, CheckpointStorage
from kuangchao_contracts.base import canonical_json
from kuangchao_contracts.descriptor import DeviceKind
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import PlanRequest
from kuangchao_contracts.wire import TokenBundle
from kuangchao_operator.layers.execution.children import build_secrets, build_service, secret_of, token_key
from kuangchao_operator.layers.execution.overrides import check
from kuangchao_operator.layers.execution.pods import PodSettings, build_pod
from tests.unit.execution.world import UID, make_job, make_plan

SETTINGS = PodSettings(gate_url="https://gate:8443", image="worker:1", pool=ResourcePoolSpec(cpu_per_device="250m"))
LIMIT = 512 * 1024


def pod(job: TrainingJob | None = None, settings: PodSettings = SETTINGS, index: int = 1) -> dict[str, Any]:
    job = job or make_job()
    request = PlanRequest(
        devices=job.spec.devices.count, per_pod=job.spec.devices.per_pod, shapes=(), training=job.spec.training
    )
    return build_pod(job, make_plan(request), "node-b", 3, 7, index, settings)


def test_identity_and_place() -> None:
    body = pod()
    meta = body["metadata"]
    assert meta["name"] == names.pod_name("job", UID, 3, 1)
    assert meta["labels"] == {
        names.LABEL_JOB: "job",
        names.LABEL_JOB_UID: UID,
        names.LABEL_MANAGED_BY: names.FIELD_MANAGER,
        names.LABEL_ATTEMPT: "7",
        names.LABEL_INCARNATION: "3",
        names.LABEL_POD_INDEX: "1",
        names.LABEL_POOL: "pool",
    }
    owner = meta["ownerReferences"][0]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (UID, True, True)
    spec = body["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-b"]}]}]
    assert "nodeName" not in spec
    assert (spec["hostname"], spec["subdomain"]) == ("w-3-1", names.service_name("job", UID))
    assert spec["restartPolicy"] == "Never"


def test_sandbox_is_that_of_the_restricted_profile() -> None:
    spec = pod()["spec"]
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    assert "serviceAccountName" not in spec
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    mounts = {m["mountPath"]: m["name"] for m in spec["containers"][0]["volumeMounts"]}
    assert mounts["/tmp"] == "tmp"
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in spec["volumes"]


def test_pod_mounts_its_own_key_alone_and_no_token_is_in_the_environment() -> None:
    """1Password/kubernetes-secrets-injector#41."""
    job = make_job()
    spec = pod(job)["spec"]
    token = next(v for v in spec["volumes"] if v["name"] == "kuangchao-token")["secret"]
    assert token == {
        "secretName": secret_of(job, 3, 1),
        "defaultMode": 0o440,
        "items": [{"key": token_key(1), "path": "bundle.json", "mode": 0o440}],
    }
    env = {e["name"]: e.get("value") for e in spec["containers"][0]["env"]}
    assert set(env) == {
        f"KUANGCHAO_{name}"
        for name in (
            "GATE_URL", "POD", "POD_INDEX", "INCARNATION", "HOST", "GRACE_SECONDS", "OPLOG", "LEASE_GRACE_SECONDS",
            "POD_UID",
        )
    }  # fmt: skip
    assert env["KUANGCHAO_HOST"] == f"w-3-1.{names.service_name('job', UID)}.team.svc"
    secret = build_secrets(
        job, 3, {i: TokenBundle(tokens={"agent/kc:execution": "eyJh"}, attempt=1, expires=1) for i in (0, 1)}
    )
    assert [s["metadata"]["name"] for s in secret] == [secret_of(job, 3, 0)]
    assert json.loads(base64.b64decode(secret[0]["data"]["pod-1"]))["tokens"] == {"agent/kc:execution": "eyJh"}
    assert "eyJ" not in json.dumps(pod(job))


def test_a_pod_that_exchanges_mounts_no_secret_but_an_account_token_that_is_good_for_nothing_else() -> None:
    body = pod(settings=SETTINGS.replace(exchange=True))
    volumes = {v["name"]: v for v in body["spec"]["volumes"]}
    assert "secret" not in json.dumps(volumes)
    assert volumes["kuangchao-token"]["emptyDir"]["medium"] == "Memory"
    assert volumes["kuangchao-account"]["projected"]["sources"] == [
        {
            "serviceAccountToken": {
                "audience": "kuangchao-token-exchange",
                "expirationSeconds": 600,
                "path": "token",
            }
        }
    ]
    container = body["spec"]["containers"][0]
    mounts = {m["name"]: m for m in container["volumeMounts"]}
    account, token = mounts["kuangchao-account"], mounts["kuangchao-token"]
    assert (account["mountPath"], account["readOnly"]) == ("/var/run/kuangchao/account", True)
    assert (token["mountPath"], token["readOnly"]) == ("/var/run/kuangchao/token", False)
    env = {e["name"]: e.get("value") for e in container["env"]}
    assert env["KUANGCHAO_ACCOUNT_TOKEN"] == "/var/run/kuangchao/account/token"
    assert body["metadata"]["labels"][names.LABEL_DELIVERY] == "exchange"
    assert body["spec"]["automountServiceAccountToken"] is False


def test_a_pod_learns_its_uid_and_says_nothing_secret_by_it() -> None:
    env = {e["name"]: e for e in pod()["spec"]["containers"][0]["env"]}
    assert env["KUANGCHAO_POD_UID"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}


def test_devices_become_resources() -> None:
    assert pod(make_job(count=4, per_pod=4))["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "1000m"}}
    gpu = ResourcePoolSpec(device_type=DeviceKind.GPU, memory_per_device="1Gi")
    template = PodTemplate.model_validate({"resources": {"requests": {"cpu": "3", "memory": "1Gi"}}})
    got = pod(make_job(count=8, per_pod=8, template=template), SETTINGS.replace(pool=gpu))["spec"]["containers"][0][
        "resources"
    ]
    assert got["requests"] == {"cpu": "3", "memory": str(8 * 2**30), "nvidia.com/gpu": "8"}
    assert got["limits"] == {"memory": str(8 * 2**30), "nvidia.com/gpu": "8"}
    small = PodTemplate.model_validate({"resources": {"requests": {"cpu": "1m"}}})
    assert pod(make_job(template=small))["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "250m"


def test_checkpoint_claim_is_mounted_only_where_there_is_one() -> None:
    storage = CheckpointStorage(claim_name="ckpt")
    spec = pod(make_job(checkpoint=CheckpointPolicy(every_steps=10, storage=storage)))["spec"]
    assert {"name": "kuangchao-checkpoints", "persistentVolumeClaim": {"claimName": "ckpt"}} in spec["volumes"]
    assert "kuangchao-checkpoints" not in json.dumps(pod()["spec"])


@pytest.mark.parametrize(("logs", "grace"), [("volume", 3_600), ("off", 0)])
def test_what_the_operator_sets_for_ranks_is_in_their_environment(logs: str, grace: int) -> None:
    changed = SETTINGS.replace(operation_logs=logs, lease_grace_seconds=grace)
    env = {e["name"]: e.get("value") for e in pod(settings=changed)["spec"]["containers"][0]["env"]}
    assert (env["KUANGCHAO_OPLOG"], env["KUANGCHAO_LEASE_GRACE_SECONDS"]) == (logs, str(grace))


def test_service_publishes_pods_that_are_not_ready() -> None:
    """kubernetes-sigs/jobset#504: pods that wait for their peers before they are ready must find them."""
    body = build_service(make_job())
    assert body["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {names.LABEL_JOB_UID: UID},
    }


def test_template_and_overrides_are_merged() -> None:
    template = PodTemplate.model_validate(
        {
            "image": "mine:2",
            "imagePullPolicy": "Never",
            "labels": {"team": "x"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "env": [{"name": "A", "value": "1"}],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "imagePullSecrets": [{"name": "regcred"}],
        }
    )
    overrides = {
        "metadata": {"annotations": {"x/y": "z"}},
        "spec": {
            "priorityClassName": "high",
            "terminationGracePeriodSeconds": 300,
            "tolerations": [{"key": "other", "operator": "Exists"}],
            "containers": [
                {"name": "train", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]},
                {"name": "side", "image": "side:1"},
            ],
        },
    }
    body = pod(make_job(template=template, pod_overrides=overrides))
    train, side = body["spec"]["containers"]
    assert (train["image"], train["imagePullPolicy"], side["image"]) == ("mine:2", "Never", "side:1")
    env = {e["name"]: e.get("value") for e in train["env"]}
    assert (env["A"], env["B"], env["KUANGCHAO_GRACE_SECONDS"]) == ("2", "3", "300")
    assert [t["key"] for t in body["spec"]["tolerations"]] == ["gpu", "other"]
    assert body["metadata"]["labels"]["team"] == "x"
    assert body["metadata"]["annotations"] == {"x/y": "z"}
    assert body["spec"]["priorityClassName"] == "high"
    assert {m["mountPath"] for m in train["volumeMounts"]} == {
        "/data",
        "/tmp",
        "/dev/shm",
        "/var/run/kuangchao/token",
        "/var/run/kuangchao/trust",
    }
    assert body["spec"]["imagePullSecrets"] == [{"name": "regcred"}]


def container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "train", **fields}]}}


DENIED: list[tuple[dict[str, Any], str]] = [
    ({"kind": "Job"}, "podOverrides.kind"),
    ({"spec": {"serviceAccountName": "admin"}}, "podOverrides.spec.serviceAccountName"),
    ({"spec": {"automountServiceAccountToken": True}}, "podOverrides.spec.automountServiceAccountToken"),
    ({"spec": {"hostNetwork": True}}, "podOverrides.spec.hostNetwork"),
    ({"spec": {"hostPID": True}}, "podOverrides.spec.hostPID"),
    ({"spec": {"hostIPC": True}}, "podOverrides.spec.hostIPC"),
    ({"spec": {"nodeName": "x"}}, "podOverrides.spec.nodeName"),
    ({"spec": {"affinity": {}}}, "podOverrides.spec.affinity"),
    ({"spec": {"hostname": "x"}}, "podOverrides.spec.hostname"),
    ({"spec": {"restartPolicy": "Always"}}, "podOverrides.spec.restartPolicy"),
    ({"spec": {"ephemeralContainers": []}}, "podOverrides.spec.ephemeralContainers"),
    ({"spec": {"securityContext": {"runAsNonRoot": False}}}, "podOverrides.spec.securityContext.runAsNonRoot"),
    ({"spec": {"securityContext": {"runAsUser": 0}}}, "podOverrides.spec.securityContext.runAsUser"),
    ({"spec": {"securityContext": {"sysctls": []}}}, "podOverrides.spec.securityContext.sysctls"),
    ({"spec": {"securityContext": None}}, "podOverrides.spec.securityContext"),
    ({"spec": {"containers": None}}, "podOverrides.spec.containers"),
    ({"spec": {"containers": [{"image": "x"}]}}, "podOverrides.spec.containers[0].name"),
    ({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}, "podOverrides.spec.volumes[0].hostPath"),
    ({"spec": {"volumes": [{"name": "v", "projected": {}}]}}, "podOverrides.spec.volumes[0].projected"),
    ({"spec": {"volumes": [{"name": "kuangchao-token", "emptyDir": {}}]}}, "podOverrides.spec.volumes[0].name"),
    ({"spec": {"volumes": [{"name": "kuangchao-account", "emptyDir": {}}]}}, "podOverrides.spec.volumes[0].name"),
    (
        {
            "spec": {
                "containers": [{"name": "side", "volumeMounts": [{"name": "kuangchao-account", "mountPath": "/a"}]}]
            }
        },
        "podOverrides.spec.containers[0].volumeMounts[0].name",
    ),
    (
        {"spec": {"volumes": [{"name": "v", "secret": {"secretName": "job-0a1b2c-0-tokens"}}]}},
        "podOverrides.spec.volumes[0].secret.secretName",
    ),
    (container(command=["sh"]), "podOverrides.spec.containers[0].command"),
    (container(resources={}), "podOverrides.spec.containers[0].resources"),
    (container(env=[{"name": "KUANGCHAO_GATE_URL", "value": "x"}]), "podOverrides.spec.containers[0].env[0].name"),
    (
        container(
            env=[{"name": "T", "valueFrom": {"secretKeyRef": {"name": "job-0a1b2c-0-tokens-1", "key": "pod-0"}}}]
        ),
        "podOverrides.spec.containers[0].env[0].valueFrom.secretKeyRef.name",
    ),
    (
        container(envFrom=[{"secretRef": {"name": "j-0a1b2c-12-tokens"}}]),
        "podOverrides.spec.containers[0].envFrom[0].secretRef.name",
    ),
    (
        container(volumeMounts=[{"name": "v", "mountPath": "/var/run"}]),
        "podOverrides.spec.containers[0].volumeMounts[0].mountPath",
    ),
    (
        container(volumeMounts=[{"name": "v", "mountPath": "/tmp/x"}]),
        "podOverrides.spec.containers[0].volumeMounts[0].mountPath",
    ),
    (container(securityContext={"privileged": True}), "podOverrides.spec.containers[0].securityContext.privileged"),
    (
        container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
        "podOverrides.spec.containers[0].securityContext.capabilities",
    ),
    (container(ports=[{"containerPort": 1, "hostPort": 1}]), "podOverrides.spec.containers[0].ports[0].hostPort"),
    (container(lifecycle={}), "podOverrides.spec.containers[0].lifecycle"),
    (
        {"spec": {"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}},
        "podOverrides.spec.initContainers[0].securityContext.privileged",
    ),
    ({"metadata": {"labels": {"kuangchao.io/job": "x"}}}, "podOverrides.metadata.labels.kuangchao.io/job"),
    ({"metadata": {"name": "x"}}, "podOverrides.metadata.name"),
    ({"metadata": {"ownerReferences": []}}, "podOverrides.metadata.ownerReferences"),
]


@pytest.mark.parametrize(("overrides", "path"), DENIED, ids=[path for _, path in DENIED])
def test_denied_overrides_name_their_path(overrides: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check(overrides)
    assert caught.value.field == path
    with pytest.raises(InvalidInputError):
        pod(make_job(pod_overrides=overrides))


def test_hardening_may_be_repeated() -> None:
    check(container(securityContext={"privileged": False, "runAsNonRoot": True}))
    check({"spec": {"securityContext": {"runAsUser": 1000, "supplementalGroups": [7]}}})


def test_objects_of_a_job_of_a_thousand_pods_stay_small() -> None:
    """meta-pytorch/torchx#1054, kubeflow/mpi-operator#611."""
    template = PodTemplate(env=tuple(EnvVar(name=f"V{i}", value="x" * 100) for i in range(40)))
    job = make_job("j" * 45, count=1000, template=template)
    bundle = TokenBundle(tokens={f"agent/kc:{i}": "x" * 1000 for i in range(6)}, attempt=1, expires=1)
    secrets = build_secrets(job, 0, dict.fromkeys(range(1000), bundle))
    assert sum(len(s["data"]) for s in secrets) == 1000
    assert max(len(canonical_json(body)) for body in [*secrets, pod(job, index=999), build_service(job)]) < LIMIT
    assert all(len(s["metadata"]["name"]) <= 253 for s in secrets)
    assert next(s for s in secrets if token_key(999) in s["data"])["metadata"]["name"] == secret_of(job, 0, 999)
