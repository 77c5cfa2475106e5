"""The chart as it renders: values are checked, pods are confined, keys are seen by one container only."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kuangchao_contracts import names
from kuangchao_contracts.policy import BUILT_IN
from kuangchao_operator.app.settings import Settings
from kuangchao_operator.kube.policy import POLICY_FILE
from kuangchao_operator.layers.governance.process import METRICS_PORT, GovernanceProcess
from kuangchao_operator.layers.resource.agent.__main__ import NODE_VARIABLE
from kuangchao_operator.policy.reader import read_policy
from tests.api.server import KC, ROOT
from tests.unit.authority.policies import NARROW

CHART = ROOT / "charts" / "kuangchao"
NAMESPACE = "kuangchao-system"
Object = dict[str, Any]


@pytest.fixture(scope="session")
def helm() -> Path:
    done = subprocess.run([str(KC), "bin"], capture_output=True, text=True, timeout=30, check=True)
    return Path(done.stdout.strip()) / "helm"


def _helm(binary: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": os.devnull}
    command = [str(binary), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def render(helm: Path, *values: str) -> list[Object]:
    """Objects of the chart with these --set values."""
    sets = [part for value in values for part in ("--set", value)]
    done = _helm(helm, "template", "kuangchao", str(CHART), "-n", NAMESPACE, "--kube-version", "1.34.0", *sets)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def refusal(helm: Path, *values: str) -> str:
    """What helm says against these --set values."""
    sets = [part for value in values for part in ("--set", value)]
    done = _helm(helm, "template", "kuangchao", str(CHART), "-n", NAMESPACE, "--kube-version", "1.34.0", *sets)
    assert done.returncode != 0
    return done.stderr


def one(objects: list[Object], kind: str, name: str) -> Object:
    found = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    assert len(found) == 1, f"{kind} {name}: {len(found)}"
    return found[0]


def pod_specs(objects: list[Object]) -> dict[str, Object]:
    """Pod specs of everything that makes pods, by name of the object."""
    return {
        o["metadata"]["name"]: o["spec"]["template"]["spec"] if "template" in o["spec"] else o["spec"]
        for o in objects
        if o["kind"] in ("Deployment", "DaemonSet", "Pod")
    }


def test_lint_has_nothing_to_say(helm: Path) -> None:
    done = _helm(helm, "lint", "--strict", str(CHART), "-n", NAMESPACE)
    assert done.returncode == 0, done.stdout
    assert "ERROR" not in done.stdout
    assert "WARNING" not in done.stdout


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("image.repo=x", "repo"),
        ("operatr.resources=x", "operatr"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("jobNamespaces={A}", "jobNamespaces"),
        ("auditWebhook.nodePort=80", "nodePort"),
        ("logLevel=LOUD", "logLevel"),
        ("storage.size=much", "size"),
        ("clusterName=My Cluster", "clusterName"),
    ],
)
def test_wrong_values_are_refused_by_name(helm: Path, value: str, named: str) -> None:
    assert named in refusal(helm, value)


def test_use_as_a_subchart_is_possible(helm: Path) -> None:
    assert render(helm, "global.registry=example", "enabled=true")


def test_jobs_may_not_run_in_the_release_namespace(helm: Path) -> None:
    assert "release's namespace" in refusal(helm, f"jobNamespaces={{{NAMESPACE}}}")


def test_crds_are_kept_switchable_and_the_committed_ones(helm: Path) -> None:
    crds = {o["metadata"]["name"]: o for o in render(helm) if o["kind"] == "CustomResourceDefinition"}
    committed = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    assert len(crds) == len(committed) == 4
    for crd in committed:
        rendered = crds[crd["metadata"]["name"]]
        assert rendered["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert rendered == crd
    dropped = [o for o in render(helm, "crds.keep=false") if o["kind"] == "CustomResourceDefinition"]
    assert all("annotations" not in crd["metadata"] for crd in dropped)
    assert not [o for o in render(helm, "crds.enabled=false") if o["kind"] == "CustomResourceDefinition"]


def test_every_container_is_confined(helm: Path) -> None:
    for name, spec in pod_specs(render(helm, "nodeAgent.nvidia=true", "auditWebhook.enabled=true")).items():
        pod = spec["securityContext"]
        assert pod["runAsNonRoot"] is True, name
        assert pod["runAsUser"] == 65532, name
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            confined = container["securityContext"]
            assert confined["allowPrivilegeEscalation"] is False, name
            assert confined["readOnlyRootFilesystem"] is True, name
            assert confined["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["limits"]["memory"], name
            assert container["resources"]["requests"]["cpu"], name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), name
        assert not [v for v in spec.get("volumes", ()) if "hostPath" in v], name


def test_only_the_issuer_sees_keys_and_it_has_no_account(helm: Path) -> None:
    spec = pod_specs(render(helm, "auditWebhook.enabled=true"))["kuangchao-operator"]
    assert spec["automountServiceAccountToken"] is False
    mounts = {c["name"]: {(m["name"], m.get("subPath")) for m in c["volumeMounts"]} for c in spec["containers"]}
    assert ("state", "keys") in mounts["issuer"]
    assert ("state", "audit") in mounts["operator"]
    assert {sub for name, sub in mounts["operator"] if name == "state"} == {"audit"}
    assert {sub for name, sub in mounts["issuer"] if name == "state"} == {"keys"}
    assert "api" in {name for name, _ in mounts["operator"]}
    assert "api" not in {name for name, _ in mounts["issuer"]}
    assert "audit-tls" not in {name for name, _ in mounts["issuer"]}


def _policy_file(objects: list[Object]) -> bytes:
    """The file that the issuer follows, as it will find it: mounted whole, so that it changes with its source."""
    issuer = pod_specs(objects)["kuangchao-operator"]["containers"][1]
    path = Path(issuer["command"][issuer["command"].index("--policy") + 1])
    (mount,) = [m for m in issuer["volumeMounts"] if m["mountPath"] == str(path.parent)]
    assert "subPath" not in mount
    (volume,) = [v for v in pod_specs(objects)["kuangchao-operator"]["volumes"] if v["name"] == mount["name"]]
    data = one(objects, "ConfigMap", volume["configMap"]["name"])["data"]
    assert data.keys() == {path.name} == {POLICY_FILE}
    return str(data[path.name]).encode()


def test_without_a_document_the_built_in_rights_are_in_force(helm: Path) -> None:
    policy = read_policy("policy.yaml", _policy_file(render(helm)), 1)
    assert policy.rights == BUILT_IN.rights


def test_a_policy_document_reaches_the_issuer_byte_for_byte(helm: Path, tmp_path: Path) -> None:
    document = tmp_path / "policy.yaml"
    document.write_text(NARROW + '# "quoted" {{ .Values.clusterName }} <&> ü\n')
    done = _helm(helm, "template", "kuangchao", str(CHART), "-n", NAMESPACE, "--kube-version", "1.34.0",
                 "--set-file", f"policy.document={document}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert _policy_file([found for found in yaml.safe_load_all(done.stdout) if found]) == document.read_bytes()
    assert "document" in refusal(helm, "policy.document.grants={}")


def test_only_people_write_the_policy(helm: Path) -> None:
    verbs = {
        role["metadata"]["name"]: set(rule["verbs"])
        for role in render(helm, "jobNamespaces={a}")
        if role["kind"] in ("Role", "ClusterRole") and role["metadata"].get("namespace") in (None, NAMESPACE)
        for rule in role["rules"]
        if "configmaps" in rule["resources"] and names.POLICY in rule.get("resourceNames", [names.POLICY])
    }
    assert verbs == {"kuangchao-operator": {"get"}, "kuangchao-policy-editor": {"get", "patch", "update"}}


def test_one_operator_at_a_time(helm: Path) -> None:
    spec = one(render(helm), "Deployment", "kuangchao-operator")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_nothing_secret_stands_in_environment_or_arguments(helm: Path) -> None:
    for name, spec in pod_specs(render(helm, "auditWebhook.enabled=true")).items():
        for container in spec["containers"]:
            for variable in container.get("env", ()):
                assert "secretKeyRef" not in json.dumps(variable), name
            assert not container.get("envFrom"), name


def test_values_reach_the_operator(helm: Path) -> None:
    objects = render(helm, "jobNamespaces={a,b}", "clusterName=east", "worker.image=w:1", "logLevel=DEBUG")
    container = pod_specs(objects)["kuangchao-operator"]["containers"][0]
    env = {v["name"]: v.get("value") for v in container["env"]}
    assert env["KUANGCHAO_JOB_NAMESPACES"] == "a,b"
    assert env["KUANGCHAO_CLUSTER_NAME"] == "east"
    assert env["KUANGCHAO_WORKER_IMAGE"] == "w:1"
    assert env["KUANGCHAO_LOG_LEVEL"] == "DEBUG"
    assert env["KUANGCHAO_GATE_URL"] == f"https://kuangchao-operator.{NAMESPACE}.svc:8443"
    assert "kuangchao/east" in pod_specs(objects)["kuangchao-operator"]["containers"][1]["command"]


def test_all_namespaces_must_be_asked_for(helm: Path) -> None:
    everywhere = render(helm, "jobNamespaces={*}")
    assert one(everywhere, "ClusterRole", "kuangchao-operator-jobs")
    assert not [o for o in everywhere if o["kind"] == "Role" and o["metadata"]["name"] == "kuangchao-operator-jobs"]
    listed = render(helm, "jobNamespaces={a,b}")
    assert not [o for o in listed if o["kind"] == "ClusterRole" and o["metadata"]["name"] == "kuangchao-operator-jobs"]
    roles = [o["metadata"] for o in listed if o["kind"] == "Role"]
    assert [role["namespace"] for role in roles if role["name"] == "kuangchao-operator-jobs"] == ["a", "b"]


def test_audit_intake_is_off_unless_asked_for(helm: Path) -> None:
    off, on = render(helm), render(helm, "auditWebhook.enabled=true")
    assert not [o for o in off if o["metadata"]["name"] == "kuangchao-k8s-audit"]
    port = one(on, "Service", "kuangchao-k8s-audit")["spec"]["ports"][0]
    assert port["nodePort"] == 30443
    named = {p["name"] for p in pod_specs(on)["kuangchao-operator"]["containers"][0]["ports"]}
    assert port["targetPort"] in named


def test_optional_parts(helm: Path) -> None:
    kinds = {o["kind"] for o in render(helm)}
    assert not kinds & {"NetworkPolicy", "PodMonitor", "ServiceMonitor"}
    assert len([o for o in render(helm, "networkPolicy.enabled=true") if o["kind"] == "NetworkPolicy"]) == 3
    assert [o for o in render(helm, "metrics.podMonitor.enabled=true") if o["kind"] == "PodMonitor"]
    assert [o for o in render(helm, "metrics.serviceMonitor.enabled=true") if o["kind"] == "ServiceMonitor"]
    both = refusal(helm, "metrics.podMonitor.enabled=true", "metrics.serviceMonitor.enabled=true")
    assert "not both" in both


def test_digest_wins_over_tag(helm: Path) -> None:
    digest = "sha256:" + "0" * 64
    spec = pod_specs(render(helm, "image.tag=v1", f"image.digest={digest}"))["kuangchao-governance"]
    assert spec["containers"][0]["image"] == f"kuangchao-operator@{digest}"


def test_every_image_is_pinned_by_default(helm: Path) -> None:
    for name, spec in pod_specs(render(helm)).items():
        for container in spec["containers"]:
            assert not container["image"].endswith(":latest"), name
            assert ":" in container["image"], name


def test_probes_and_ports_are_what_the_processes_serve(helm: Path) -> None:
    specs = pod_specs(render(helm))
    governance = specs["kuangchao-governance"]["containers"][0]
    assert governance["ports"] == [{"name": "metrics", "containerPort": METRICS_PORT}]
    upstream: Any = None
    routes = {r.resource.canonical for r in GovernanceProcess(upstream, upstream, upstream).open_app().router.routes()}
    probes = [governance[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")]
    assert {probe["path"] for probe in probes} <= routes
    assert {probe["port"] for probe in probes} == {"metrics"}
    ports = {port["name"]: port["containerPort"] for port in specs["kuangchao-operator"]["containers"][0]["ports"]}
    defaults = Settings.model_fields
    assert ports == {"gate": defaults["gate_port"].default, "metrics": defaults["metrics_port"].default}


def test_no_service_or_rule_leads_to_audit_queries(helm: Path) -> None:
    objects = render(helm, "networkPolicy.enabled=true")
    assert [p["port"] for p in one(objects, "Service", "kuangchao-governance")["spec"]["ports"]] == [METRICS_PORT]
    allowed = one(objects, "NetworkPolicy", "kuangchao-governance")["spec"]["ingress"]
    assert allowed == [{"ports": [{"port": "metrics"}]}]


def test_settings_take_what_the_chart_sets(helm: Path) -> None:
    container = pod_specs(render(helm, "auditWebhook.enabled=true"))["kuangchao-operator"]["containers"][0]
    names = {variable["name"] for variable in container["env"]}
    assert names <= {f"KUANGCHAO_{field.upper()}" for field in Settings.model_fields}
    required = {f"KUANGCHAO_{name.upper()}" for name, field in Settings.model_fields.items() if field.is_required()}
    assert required <= names
    agent = pod_specs(render(helm))["kuangchao-node-agent"]["containers"][0]
    assert NODE_VARIABLE in {variable["name"] for variable in agent["env"]}


def test_revocations_outlive_the_release_and_one_role_may_write_them(helm: Path) -> None:
    objects = render(helm)
    config_map = one(objects, "ConfigMap", "kuangchao-revocations")
    assert config_map["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "data" not in config_map, "an upgrade must not empty it"
    assert one(objects, "Role", "kuangchao-security")["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["kuangchao-revocations"],
            "verbs": ["get", "patch", "update"],
        }
    ]


def test_from_how_many_pods_on_tokens_are_exchanged(helm: Path) -> None:
    container = pod_specs(render(helm, "exchangeAbovePods=7"))["kuangchao-operator"]["containers"][0]
    assert {"name": "KUANGCHAO_EXCHANGE_ABOVE_PODS", "value": "7"} in container["env"]
    assert "exchangeAbovePods" in refusal(helm, "exchangeAbovePods=-1")
    rules = one(render(helm), "ClusterRole", "kuangchao-operator")["rules"]
    assert ["create"] in [rule["verbs"] for rule in rules if rule["resources"] == ["tokenreviews"]]
