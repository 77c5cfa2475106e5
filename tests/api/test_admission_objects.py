"""What only the operator and the node agents may write: their marks and contents on pods and their like, plans,
descriptors, and the pools of administrators. On a real API server, by people to whom RBAC grants everything."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.fakes import CHART, NODE_AGENT, RELEASE, account_config, eventually
from tests.api.manifests import full_descriptor, full_plan
from tests.api.people import ACTORS, APPLY, CORE, MERGE, NAMESPACE, PROBES, STRATEGIC, Ask, child, refusal, resource
from tests.api.server import API, ApiServer, Object, RefusedError

UID = {"kuangchao.io/job-uid": "1-2-3"}
MARKS = UID | {"kuangchao.io/job": "one", "kuangchao.io/attempt": "1", "kuangchao.io/pod-index": "0"}
GIVEN, CHANGED = "are given only by the operator", "are changed only by the operator"
CONTENT = "content is changed only by"
TOKEN = {"kuangchao.io/token": "true"}
PORTS = {"ports": [{"port": 1}]}
FREE = {"status": {"free": 9}}
FINALIZER = {"metadata": {"finalizers": ["kuangchao.io/cleanup"]}}
POD: Object = {"containers": [{"name": "train", "image": "worker:1"}]}
DEBUG = {"name": "debug", "image": "shell:1", "volumeMounts": [{"name": "token", "mountPath": "/t"}]}
POOLS, PLANS = f"{API}/resourcepools", f"{API}/namespaces/{NAMESPACE}/parallelplans"
DESCRIPTORS = f"{API}/resourcedescriptors"


def _meta(kind: str, **entries: str | None) -> Object:
    """A patch of `labels` or `annotations` in our domain."""
    return {"metadata": {kind: {f"kuangchao.io/{key.replace('_', '-')}": value for key, value in entries.items()}}}


def _bind(path: str, annotation: str) -> Ask:
    """Bind the pod `plain` to a node; the annotation ends up on the pod."""
    target = {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
    metadata = {"name": "plain", "annotations": {annotation: "2"}}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    return Ask("POST", f"{CORE}/{path}", body)


def _pool(change: Object, part: str = "") -> Ask:
    return Ask("PATCH", f"{POOLS}/standing{part}", change, MERGE)


def _new(kind: str, labels: Object, **fields: Any) -> Ask:
    """Create an object of Kubernetes' own kinds."""
    return Ask("POST", f"{CORE}/{kind.lower()}s", child(kind, "new", labels, **fields))


def _pod(name: str, **metadata: Any) -> Ask:
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name} | metadata, "spec": POD}
    return Ask("POST", f"{CORE}/pods", body)


def _patch(plural: str, name: str, body: Object, content: str = MERGE) -> Ask:
    return Ask("PATCH", f"{CORE}/{plural}/{name}", body, content)


def _debug(name: str) -> Ask:
    container = DEBUG if name == "ours" else {"name": "debug", "image": "shell:1"}
    return _patch("pods", f"{name}/ephemeralcontainers", {"spec": {"ephemeralContainers": [container]}}, STRATEGIC)


def _image(name: str) -> Ask:
    return _patch("pods", name, {"spec": {"containers": [{"name": "train", "image": "evil:1"}]}}, STRATEGIC)


RUNNING = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
SECRET = f"{CORE}/secrets"
CASES: dict[str, tuple[str, Ask, str]] = {
    "pod-with-uid": ("stranger", _pod("new", labels=UID), GIVEN),
    "pod-with-rank": ("owner", _pod("new", labels={"kuangchao.io/pod-index": "3"}), GIVEN),
    "pod-with-token-rev": ("stranger", _pod("new", annotations={"kuangchao.io/token-rev": "9"}), GIVEN),
    "pod-by-administrator": ("administrator", _pod("new", labels=UID), GIVEN),
    "pod-by-controller": ("replicaset", _pod("new", labels=UID), GIVEN),
    "pod-by-apply": ("stranger", _patch("pods", "x?fieldManager=t", child("Pod", "x", UID, spec=POD), APPLY), GIVEN),
    "pod-without": ("stranger", _pod("new", labels={"other.io/job-uid": "1"}), ""),
    "pod-by-operator": ("operator", _pod("new", labels=MARKS), ""),
    "attempt": ("stranger", _patch("pods", "ours", _meta("labels", attempt="2")), CHANGED),
    "attempt-by-owner": ("owner", _patch("pods", "ours", _meta("labels", attempt="2")), CHANGED),
    "attempt-by-administrator": ("administrator", _patch("pods", "ours", _meta("labels", attempt="2")), CHANGED),
    "attempt-by-operator": ("operator", _patch("pods", "ours", _meta("labels", attempt="2")), ""),
    "unmark": ("stranger", _patch("pods", "ours", _meta("labels", job_uid=None)), CHANGED),
    "token-rev": ("stranger", _patch("pods", "ours", _meta("annotations", token_rev="2")), CHANGED),
    "token-rev-by-operator": ("operator", _patch("pods", "ours", _meta("annotations", token_rev="2")), ""),
    "join-a-job": ("stranger", _patch("pods", "plain", _meta("labels", job_uid="1-2-3")), CHANGED),
    "join-by-status": ("stranger", _patch("pods", "plain/status", _meta("labels", job_uid="1-2-3")), CHANGED),
    "join-by-binding": ("stranger", _bind("pods/plain/binding", "kuangchao.io/token-rev"), GIVEN),
    "join-by-bindings": ("stranger", _bind("bindings", "kuangchao.io/token-rev"), GIVEN),
    "bind": ("stranger", _bind("pods/plain/binding", "other.io/x"), ""),
    "other-label": ("stranger", _patch("pods", "ours", {"metadata": {"labels": {"team": "a"}}}), ""),
    "image": ("stranger", _image("ours"), CONTENT),
    "image-of-plain": ("stranger", _image("plain"), ""),
    "debug": ("owner", _debug("ours"), f"{CONTENT} the operator.*ask an administrator to debug the pod"),
    "debug-by-administrator": ("administrator", _debug("ours"), ""),
    "debug-plain": ("stranger", _debug("plain"), ""),
    "kubelet": ("kubelet", _patch("pods", "ours/status", RUNNING), ""),
    "collector": ("collector", _patch("pods", "ours", {"metadata": {"finalizers": ["x.io/y"]}}), ""),
    "token-secret": ("stranger", _new("Secret", TOKEN), GIVEN),
    "token-secret-by-operator": ("operator", _new("Secret", TOKEN), ""),
    "tokens": ("owner", _patch("secrets", "ours", {"stringData": {"pod-0": "mine"}}), CONTENT),
    "tokens-by-operator": ("operator", _patch("secrets", "ours", {"stringData": {"pod-0": "new"}}), ""),
    "freeze-tokens": ("stranger", _patch("secrets", "ours", {"immutable": True}), CONTENT),
    "unmark-tokens": ("stranger", _patch("secrets", "ours", _meta("labels", token=None)), CHANGED),
    "secret": ("stranger", _new("Secret", {"a": "b"}), ""),
    "change-secret": ("stranger", _patch("secrets", "plain", {"stringData": {"a": "b"}}), ""),
    "mark-secret": ("stranger", _patch("secrets", "plain", _meta("labels", token="true")), CHANGED),
    "trust": ("stranger", _patch("configmaps", "kuangchao-trust", {"data": {"ca.crt": "mine"}}), CONTENT),
    "trust-by-operator": ("operator", _patch("configmaps", "kuangchao-trust", {"data": {"ca.crt": "new"}}), ""),
    "config": ("stranger", _new("ConfigMap", {}, data={"a": "b"}), ""),
    "mark-config": ("stranger", _new("ConfigMap", MARKS), GIVEN),
    "mark-service": ("stranger", _new("Service", MARKS, spec=PORTS), GIVEN),
    "service": ("stranger", _new("Service", {}, spec=PORTS), ""),
    "redirect": ("stranger", _patch("services", "ours", {"spec": {"selector": {"a": "b"}}}), CONTENT),
    "plan": ("administrator", PROBES["plans"], "plans are written only by the operator"),
    "plan-by-operator": ("operator", PROBES["plans"], ""),
    "delete-plan": ("stranger", Ask("DELETE", f"{PLANS}/standing"), "written only by the operator"),
    "delete-plan-by-collector": ("collector", Ask("DELETE", f"{PLANS}/standing"), ""),
    "pool": ("stranger", PROBES["pools"], "only by administrators.*value people.administrators of the chart"),
    "pool-by-administrator": ("administrator", PROBES["pools"], ""),
    "pool-by-gitops": ("gitops", PROBES["pools"], ""),
    "change-pool": ("owner", _pool({"spec": {"nodeSelector": {}}}), "only by administrators"),
    "change-pool-by-operator": ("operator", _pool(FINALIZER), ""),
    "delete-pool": ("stranger", Ask("DELETE", f"{POOLS}/standing"), "only by administrators"),
    "pool-status": ("administrator", _pool(FREE, "/status"), "only by the operator"),
    "pool-status-by-operator": ("operator", _pool(FREE, "/status"), ""),
    "descriptor": ("administrator", PROBES["descriptors"], "published only by node agents"),
    "descriptor-by-agent": ("agent", PROBES["descriptors"], ""),
    "descriptor-by-operator": ("operator", PROBES["descriptors"], "cannot create resource"),
    "delete-descriptor": ("stranger", Ask("DELETE", f"{DESCRIPTORS}/standing-1"), "administrators may delete those"),
    "delete-descriptor-by-administrator": ("administrator", Ask("DELETE", f"{DESCRIPTORS}/standing-1"), ""),
    "delete-descriptor-by-agent": ("agent", Ask("DELETE", f"{DESCRIPTORS}/standing-1"), ""),
}  # fmt: skip


def _descriptor(node: str) -> Object:
    body = full_descriptor()
    body["metadata"], body["spec"]["node"] = {"name": f"{node}-1"}, node
    body["spec"]["generation"] = 1
    return body


@pytest.fixture(scope="module")
def objects(guarded: ApiServer) -> Iterator[ApiServer]:
    """What the operator and an agent have made (`ours`, `standing`), and what others have (`plain`)."""
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    eventually(lambda: _there(guarded, account), "the namespace's default account")
    guarded.request("POST", "/api/v1/nodes", {"metadata": {"name": "node-1"}})
    for actor, ask in _made():
        ask.by(guarded, ACTORS[actor], dry=False)
    yield guarded
    for path in (f"{CORE}/pods/ours", f"{CORE}/pods/plain"):
        guarded.request("DELETE", path, {"gracePeriodSeconds": 0})
    guarded.request("DELETE", "/api/v1/nodes/node-1")


def _made() -> list[tuple[str, Ask]]:
    volume = {"volumes": [{"name": "token", "emptyDir": {}}], "nodeName": "node-1"}
    service = {"clusterIP": "None", "selector": UID}
    return [
        ("operator", Ask("POST", f"{CORE}/pods", child("Pod", "ours", MARKS, spec=POD | volume))),
        ("stranger", _pod("plain")),
        ("operator", Ask("POST", SECRET, child("Secret", "ours", MARKS | TOKEN))),
        ("stranger", Ask("POST", SECRET, child("Secret", "plain", {}))),
        ("operator", Ask("POST", f"{CORE}/services", child("Service", "ours", MARKS, spec=service))),
        ("operator", Ask("POST", f"{CORE}/configmaps", child("ConfigMap", "kuangchao-trust", {}))),
        ("operator", Ask("POST", PLANS, full_plan() | {"metadata": {"name": "standing"}})),
        ("administrator", Ask("POST", POOLS, resource("ResourcePool", {}) | {"metadata": {"name": "standing"}})),
        ("agent", Ask("POST", DESCRIPTORS, _descriptor("standing"))),
    ]


def _there(server: ApiServer, path: str) -> bool:
    try:
        return bool(server.request("GET", path))
    except RefusedError:
        return False


@pytest.mark.parametrize("case", CASES)
def test_marks_and_contents(objects: ApiServer, case: str) -> None:
    actor, ask, message = CASES[case]
    if message:
        with pytest.raises(RefusedError, match=message):
            ask.by(objects, ACTORS[actor])
    else:
        assert refusal(objects, actor, ask) == ""


def test_workers_trust_is_given_by_the_operator_only(objects: ApiServer) -> None:
    """Also where no job has run yet; in the release's own namespace the chart itself makes it."""
    objects.kubectl("create", "namespace", "fresh")
    trust = child("ConfigMap", "kuangchao-trust", {}, data={"ca.crt": "mine"})
    ask = Ask("POST", "/api/v1/namespaces/fresh/configmaps", trust)
    assert "are given only by the operator" in refusal(objects, "owner", ask)
    change = Ask("PATCH", f"/api/v1/namespaces/{RELEASE}/configmaps/kuangchao-trust", {"data": {"a": "b"}}, MERGE)
    assert refusal(objects, "administrator", change) == ""


def test_an_agent_describes_its_own_node_only(objects: ApiServer, tmp_path: Path) -> None:
    """NVIDIA/topograph#410: the node's name is compared where the API server knows it, here from a pod's own token."""
    pod = child("Pod", "agent", {}, spec=POD | {"nodeName": "node-1", "serviceAccountName": "kuangchao-node-agent"})
    objects.request("POST", f"/api/v1/namespaces/{RELEASE}/pods", pod)
    bound = ("--bound-object-kind=Pod", "--bound-object-name=agent")
    config = tmp_path / "kubeconfig"
    config.write_text(account_config(objects, "kuangchao-node-agent", *bound))
    config.chmod(0o600)
    create = ("--kubeconfig", config, "create", "--dry-run=server", "-f", "-")
    assert "node-1-1" in objects.kubectl(*create, stdin=json.dumps(_descriptor("node-1")))
    with pytest.raises(RefusedError, match="of its own node only, and this one runs on node-1"):
        objects.kubectl(*create, stdin=json.dumps(_descriptor("node-2")))
    with pytest.raises(RefusedError, match="of its own node only"):
        objects.kubectl("--kubeconfig", config, "delete", "--dry-run=server", "resourcedescriptor", "standing-1")
    objects.request("DELETE", f"/api/v1/namespaces/{RELEASE}/pods/agent", {"gracePeriodSeconds": 0})


def test_with_no_administrator_named_rbac_alone_decides_about_pools(control_plane: ApiServer) -> None:
    user = "rbac-only"
    role = ("--clusterrole=kuangchao-administrator", f"--user={user}")
    control_plane.kubectl("create", "clusterrolebinding", user, *role)
    path = f"{POOLS}?dryRun=All"
    eventually(lambda: _granted(control_plane, path, user), "the binding is in force")
    with pytest.raises(RefusedError, match="cannot create resource"):
        control_plane.request("POST", path, resource("ResourcePool", {}), user="nobody")
    made = control_plane.request("POST", DESCRIPTORS, _descriptor("lost"), user=NODE_AGENT)
    assert control_plane.request("DELETE", f"{DESCRIPTORS}/{made['metadata']['name']}", user=user)


def _granted(server: ApiServer, path: str, user: str) -> bool:
    try:
        return bool(server.request("POST", path, resource("ResourcePool", {}), user=user))
    except RefusedError as error:
        assert "cannot create resource" in str(error)
        return False


def test_governance_has_no_writing_verb(guarded: ApiServer) -> None:
    account = f"system:serviceaccount:{RELEASE}:kuangchao-governance"
    for namespace in (NAMESPACE, RELEASE):
        listed = guarded.kubectl("auth", "can-i", "--list", "-n", namespace, "--as", account, "--no-headers")
        verbs = {
            verb
            for line in listed.splitlines()
            if "selfsubject" not in line
            for verb in line[line.rindex("[") + 1 : line.rindex("]")].split()
        }
        assert verbs == {"get", "list", "watch"}


def test_policies_fail_closed_and_can_be_left_out(guarded: ApiServer) -> None:
    def rendered(*values: str) -> list[Object]:
        arguments = ("template", "kuangchao", CHART, "-n", RELEASE, "--kube-version", "1.30.0", *values)
        found = [part for part in yaml.safe_load_all(guarded.helm(*arguments)) if part]
        return [part for part in found if part["kind"].startswith("ValidatingAdmissionPolicy")]

    policies = [p for p in rendered() if p["kind"] == "ValidatingAdmissionPolicy"]
    bindings = [p for p in rendered() if p["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert {p["spec"]["failurePolicy"] for p in policies} == {"Fail"}
    assert [b["spec"]["validationActions"] for b in bindings] == [["Deny"]] * len(policies)
    assert {b["spec"]["policyName"] for b in bindings} == {p["metadata"]["name"] for p in policies}
    assert rendered("--set", "admission.enabled=false") == []
