"""The chart on a real API server: objects are accepted, accounts may do what is meant and no more, data survives."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.api.fakes import eventually
from tests.api.people import job
from tests.api.server import API, PATIENCE, ROOT, ApiServer, RefusedError

CHART = ROOT / "charts" / "kuangchao"
NAMESPACE = "kuangchao-system"
JOBS = "team-a"
AUDITOR = "mei"

READ = {"get", "list", "watch"}
# What anybody who is logged in may ask: who am I, what may I do.
EVERYBODY = {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}

CLUSTER_RULES: dict[str, dict[str, set[str]]] = {
    "kuangchao-operator": {
        "kuangchao.io/trainingjobs": READ | {"patch", "delete"},
        "kuangchao.io/trainingjobs/status": {"get", "patch", "update"},
        "kuangchao.io/trainingjobs/finalizers": {"update"},
        "kuangchao.io/resourcepools": READ | {"patch"},
        "kuangchao.io/resourcepools/status": {"get", "patch", "update"},
        "kuangchao.io/resourcepools/finalizers": {"update"},
        "kuangchao.io/parallelplans": READ | {"create", "patch", "delete"},
        "kuangchao.io/resourcedescriptors": READ,
        "/nodes": READ,
        "/pods": READ,
        "/namespaces": {"get"},
        "/events": {"create"},
        "authentication.k8s.io/tokenreviews": {"create"},
    },
    "kuangchao-governance": {
        "kuangchao.io/trainingjobs": READ,
        "kuangchao.io/resourcepools": READ,
        "kuangchao.io/resourcedescriptors": READ,
        "kuangchao.io/parallelplans": READ,
        "/nodes": READ,
        "/pods": READ,
        "/events": READ,
    },
    "kuangchao-node-agent": {
        "kuangchao.io/resourcedescriptors": READ | {"create", "delete"},
        "kuangchao.io/resourcepools": READ,
        "/nodes": READ,
        "/pods": READ,
    },
}
JOB_RULES = {
    "/pods": READ | {"create", "patch", "delete"},
    "/services": READ | {"create", "patch", "delete"},
    "/configmaps": READ | {"create", "patch", "delete"},
    "/secrets": {"get", "create", "patch", "delete"},
    "/persistentvolumeclaims": {"get", "list"},
}
RELEASE_RULES = {
    "/secrets:kuangchao-governance-token": {"get", "patch", "update"},
    "/configmaps:kuangchao-trust": {"get", "patch", "update"},
    "/configmaps:kuangchao-revocations": {"get", "patch", "update"},
    "/configmaps:kuangchao-audit-head": {"get", "patch", "update"},
    "/configmaps:kuangchao-policy": {"get"},
}


@pytest.fixture(scope="module")
def installed(bare_api: ApiServer) -> ApiServer:
    """The release, with one namespace of jobs and one that has nothing to do with it."""
    for namespace in (JOBS, "strangers", NAMESPACE):
        bare_api.kubectl("create", "namespace", namespace)
    bare_api.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    _upgrade(bare_api)
    established = ("wait", "--for=condition=Established", f"--timeout={PATIENCE:.0f}s")
    bare_api.kubectl(*established, "crd", "-l", "app.kubernetes.io/part-of=kuangchao")
    return bare_api


def _upgrade(server: ApiServer, *values: str) -> None:
    sets = [part for value in (f"jobNamespaces={{{JOBS}}}", *values) for part in ("--set", value)]
    server.helm("upgrade", "--install", "kuangchao", CHART, "-n", NAMESPACE, *sets)


def _may(server: ApiServer, account: str, namespace: str) -> dict[str, set[str]]:
    """What an account of the release may do in a namespace."""
    return _review(server, f"system:serviceaccount:{NAMESPACE}:{account}", namespace)


def _review(server: ApiServer, user: str, namespace: str) -> dict[str, set[str]]:
    """What a user may do in a namespace, as the API server itself sees it: resource[:name] -> verbs."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    answer = server.request("POST", path, review, user=user)
    found: dict[str, set[str]] = {}
    for rule in answer["status"]["resourceRules"]:
        names = rule.get("resourceNames") or [""]
        for group in rule["apiGroups"]:
            for resource in set(rule["resources"]) - EVERYBODY:
                for name in names:
                    key = f"{group}/{resource}" + (f":{name}" if name else "")
                    found.setdefault(key, set()).update(rule["verbs"])
    return found


def _comes_to(read: Callable[[], object], wanted: object) -> None:
    """Rights follow Roles and bindings some time after these are made."""
    eventually(lambda: read() == wanted, lambda: f"{read()} is {wanted}")


def _merged(*rules: dict[str, set[str]]) -> dict[str, set[str]]:
    merged: dict[str, set[str]] = {}
    for rule in rules:
        for key, verbs in rule.items():
            merged[key] = merged.get(key, set()) | verbs
    return merged


@pytest.mark.parametrize("account", CLUSTER_RULES)
def test_accounts_may_do_what_is_meant_and_no_more(installed: ApiServer, account: str) -> None:
    _comes_to(lambda: _may(installed, account, "strangers"), CLUSTER_RULES[account])


def test_operator_holds_secrets_only_where_jobs_are(installed: ApiServer) -> None:
    rules = CLUSTER_RULES["kuangchao-operator"]
    _comes_to(lambda: _may(installed, "kuangchao-operator", JOBS), _merged(rules, JOB_RULES))
    _comes_to(lambda: _may(installed, "kuangchao-operator", NAMESPACE), _merged(rules, RELEASE_RULES))


@pytest.mark.parametrize("namespace", [JOBS, NAMESPACE, "strangers"])
def test_governance_has_no_writing_verb_anywhere(installed: ApiServer, namespace: str) -> None:
    _comes_to(lambda: set().union(*_may(installed, "kuangchao-governance", namespace).values()), READ)


def test_auditors_may_forward_to_governance_and_nothing_else(installed: ApiServer) -> None:
    role = f"--role=kuangchao-auditor --user={AUDITOR} -n {NAMESPACE}".split()
    installed.kubectl("create", "rolebinding", "auditors", *role)
    rights = {
        "/pods": {"get", "list"},
        "/pods/portforward": {"get", "create"},
        "/configmaps:kuangchao-trust": {"get"},
        "/configmaps:kuangchao-audit-head": {"get"},
    }
    _comes_to(lambda: _review(installed, AUDITOR, NAMESPACE), rights)
    assert _review(installed, AUDITOR, JOBS) == {}


@pytest.mark.parametrize("values", ["", "auditWebhook.enabled=true", "networkPolicy.enabled=true"])
def test_all_objects_are_accepted(installed: ApiServer, values: str) -> None:
    _upgrade(installed, *filter(None, [values]))


def test_pods_pass_the_restricted_profile(installed: ApiServer) -> None:
    for kind, name in (
        ("deployment", "kuangchao-operator"),
        ("deployment", "kuangchao-governance"),
        ("daemonset", "kuangchao-node-agent"),
    ):
        text = installed.kubectl("-n", NAMESPACE, "get", kind, name, "-o", "json")
        template = json.loads(text)["spec"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", **template["metadata"]}, **template}
        pod["metadata"] = {**template["metadata"], "name": "probe"}
        installed.kubectl("-n", NAMESPACE, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
        spec: dict[str, Any] = pod["spec"]
        spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
        with pytest.raises(RefusedError, match="violates PodSecurity"):
            installed.kubectl("-n", NAMESPACE, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))


def test_upgrade_leaves_what_the_operator_wrote(installed: ApiServer) -> None:
    token = base64.b64encode(b"written by the operator").decode()
    change = json.dumps({"data": {"bundle.json": token}})
    account = f"--as=system:serviceaccount:{NAMESPACE}:kuangchao-operator"
    installed.kubectl(
        "-n", NAMESPACE, "patch", "secret", "kuangchao-governance-token", "--type=merge", "-p", change, account
    )
    _upgrade(installed, "logLevel=DEBUG")
    text = installed.kubectl("-n", NAMESPACE, "get", "secret", "kuangchao-governance-token", "-o", "json")
    assert json.loads(text)["data"] == {"bundle.json": token}


def test_jobs_are_refused_where_no_operator_looks(installed: ApiServer) -> None:
    def create(namespace: str, **spec: object) -> str:
        path = f"{API}/namespaces/{namespace}/trainingjobs?dryRun=All"
        try:
            installed.request("POST", path, job("probe", **spec))
        except RefusedError as error:
            return str(error)
        return ""

    eventually(lambda: "job-namespaces" in create("strangers"), "the policy is in force")
    assert f"metadata.namespace=strangers: no operator looks for jobs there; jobs may run in {JOBS}" in create(
        "strangers"
    )
    assert "is the operator's own namespace (ReleaseNamespace)" in create(NAMESPACE)
    assert create(JOBS) == ""
    assert create("strangers", managedBy="kueue.x-k8s.io/multikueue") == ""


def test_release_is_far_below_the_limit_of_its_secret(installed: ApiServer) -> None:
    text = installed.kubectl("-n", NAMESPACE, "get", "secret", "-l", "owner=helm", "-o", "json")
    sizes = [len(base64.b64decode(s["data"]["release"])) for s in json.loads(text)["items"]]
    assert 0 < max(sizes) < 1024 * 1024 / 4


@pytest.mark.parametrize(
    ("role", "verb", "resource", "allowed"),
    [
        ("kuangchao-viewer", "list", "trainingjobs", True),
        ("kuangchao-viewer", "create", "trainingjobs", False),
        ("kuangchao-editor", "create", "trainingjobs", True),
        ("kuangchao-editor", "patch", "trainingjobs/status", False),
        ("kuangchao-editor", "create", "parallelplans", False),
        ("kuangchao-editor", "patch", "resourcepools", False),
        ("kuangchao-pool-admin", "patch", "resourcepools", True),
        ("kuangchao-pool-admin", "create", "trainingjobs", False),
    ],
)
def test_roles_for_people(installed: ApiServer, role: str, verb: str, resource: str, allowed: bool) -> None:
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"people-{role}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": role}],
    }
    installed.kubectl("apply", "-f", "-", stdin=json.dumps(binding))
    read = "resourcepools" if role == "kuangchao-pool-admin" else "trainingjobs"
    _comes_to(lambda: _permits(installed, role, "get", read), True)
    assert _permits(installed, role, verb, resource) is allowed


def _permits(server: ApiServer, user: str, verb: str, resource: str) -> bool:
    name, _, sub = resource.partition("/")
    attributes = {"verb": verb, "group": "kuangchao.io", "resource": name, "subresource": sub, "namespace": JOBS}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return bool(server.request("POST", path, review, user=user)["status"]["allowed"])


def test_uninstall_keeps_crds_jobs_and_audit(bare_api: ApiServer, installed: ApiServer) -> None:
    pool = {"apiVersion": "kuangchao.io/v1alpha1", "kind": "ResourcePool", "metadata": {"name": "stays"}, "spec": {}}
    installed.create(pool)
    installed.helm("uninstall", "kuangchao", "-n", NAMESPACE)
    assert bare_api.request("GET", f"{API}/resourcepools/stays")["metadata"]["name"] == "stays"
    kept = bare_api.kubectl("-n", NAMESPACE, "get", "pvc,deploy,ds,secret,sa", "-o", "name").split()
    assert kept == ["persistentvolumeclaim/kuangchao-state"]
    _upgrade(bare_api)
