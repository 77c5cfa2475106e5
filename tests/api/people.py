"""Who asks: people and accounts on an API server with the chart's policies, and the requests that they make.

RBAC grants every person everything here, so what is refused is refused by a policy.
"""

import json
from functools import partial
from typing import Any, NamedTuple

from tests.api.fakes import RELEASE, eventually
from tests.api.manifests import full_descriptor, full_plan
from tests.api.server import API, ApiServer, Object, RefusedError

NAMESPACE = "team-a"
JOBS = f"{API}/namespaces/{NAMESPACE}/trainingjobs"
CORE = f"/api/v1/namespaces/{NAMESPACE}"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
ADMINISTRATORS = "platform"
VALUES = (
    f"people.administrators.groups={{{ADMINISTRATORS}}}",
    "people.gitops={system:serviceaccount:argocd:controller}",
)
VERBS = "create,get,list,watch,update,patch,delete,deletecollection"


class Actor(NamedTuple):
    """A name at the API server and the one group that matters."""

    user: str
    group: str | None = None


ACTORS = {
    "administrator": Actor("ada", ADMINISTRATORS),
    "owner": Actor("olga"),
    "collaborator": Actor("kolya"),
    "viewer": Actor("vera"),
    "stranger": Actor("sam"),
    "delegate": Actor("dina"),
    "gitops": Actor("system:serviceaccount:argocd:controller"),
    "operator": Actor(f"system:serviceaccount:{RELEASE}:kuangchao-operator"),
    "agent": Actor(f"system:serviceaccount:{RELEASE}:kuangchao-node-agent"),
    "collector": Actor("system:serviceaccount:kube-system:generic-garbage-collector"),
    "replicaset": Actor("system:serviceaccount:kube-system:replicaset-controller"),
    "kubelet": Actor("system:node:node-1", "system:nodes"),
}
PEOPLE = ("administrator", "owner", "collaborator", "viewer", "stranger", "delegate", "gitops")


class Ask(NamedTuple):
    """A request; `{user}` in the body is whoever makes it."""

    method: str
    path: str
    body: Any = None
    content: str = "application/json"

    def by(self, server: ApiServer, actor: Actor, *, dry: bool = True) -> Object:
        """Make it as somebody, without effect unless `dry` is False."""
        body = json.loads(json.dumps(self.body).replace("{user}", actor.user))
        if self.method == "PUT":
            body["metadata"]["resourceVersion"] = server.request("GET", self.path)["metadata"]["resourceVersion"]
        query = "&" if "?" in self.path else "?"
        path = f"{self.path}{query}dryRun=All" if dry else self.path
        return server.request(self.method, path, body, self.content, user=actor.user, group=actor.group)


def job(name: str, **spec: Any) -> Object:
    """A TrainingJob."""
    return {
        "apiVersion": "kuangchao.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {"pool": "cpu", "task": "tasks:train", "devices": {"count": 1}, **spec},
    }


def resource(kind: str, spec: Object) -> Object:
    """An object of another kind of ours."""
    return {"apiVersion": "kuangchao.io/v1alpha1", "kind": kind, "metadata": {"name": "probe"}, "spec": spec}


def child(kind: str, name: str, labels: Object, **fields: Any) -> Object:
    """A namespaced object of Kubernetes' own kinds with labels."""
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": labels}, **fields}


def grant(server: ApiServer) -> None:
    """The namespace with a job that has no owner, and what RBAC lets people do in it."""
    server.kubectl("create", "namespace", NAMESPACE)
    rules = {
        "ours": "trainingjobs.kuangchao.io,trainingjobs.kuangchao.io/status,resourcepools.kuangchao.io,"
        "resourcepools.kuangchao.io/status,resourcedescriptors.kuangchao.io,parallelplans.kuangchao.io",
        "children": "pods,pods/status,pods/ephemeralcontainers,pods/binding,bindings,services,secrets,configmaps",
    }
    subjects = [f"--user={ACTORS[name].user}" for name in PEOPLE]
    for name, resources in rules.items():
        server.kubectl("create", "clusterrole", f"all-{name}", f"--verb={VERBS}", f"--resource={resources}")
        server.kubectl("create", "clusterrolebinding", f"all-{name}", f"--clusterrole=all-{name}", *subjects)
    server.request("POST", JOBS, job("free"))
    delegate = ("--clusterrole=kuangchao-own-for", f"--user={ACTORS['delegate'].user}")
    server.kubectl("create", "rolebinding", "own-for", "-n", NAMESPACE, *delegate)


def refusal(server: ApiServer, name: str, ask: Ask) -> str:
    """What the API server says against a request; empty if it grants it."""
    try:
        ask.by(server, ACTORS[name])
    except RefusedError as error:
        return str(error)
    return ""


OWN_FOR = Ask("POST", JOBS, job("probe", access={"owner": "nobody"}))
PROBES = {
    "job-access": OWN_FOR,
    "job-service-account": Ask("POST", JOBS, job("probe", podOverrides={"spec": {"serviceAccountName": "robot"}})),
    "pools": Ask("POST", f"{API}/resourcepools", resource("ResourcePool", {})),
    "plans": Ask("POST", f"{API}/namespaces/{NAMESPACE}/parallelplans", full_plan()),
    "descriptors": Ask("POST", f"{API}/resourcedescriptors", full_descriptor()),
    "status": Ask("PATCH", f"{JOBS}/free/status", {"status": {"attempt": 9}}, MERGE),
    "children": Ask("POST", f"{CORE}/configmaps", child("ConfigMap", "probe", {"kuangchao.io/job": "x"})),
}
"""A request for each policy that it must refuse."""


def in_force(server: ApiServer) -> None:
    """Wait until each policy refuses what it must, and the last binding of `grant` grants: the API server takes in
    policies and bindings some time after they are made."""
    for policy, ask in PROBES.items():
        eventually(partial(_refuses, server, policy, ask), f"policy {policy}")
    eventually(lambda: not refusal(server, "delegate", OWN_FOR), "the right to create jobs for others")


def _refuses(server: ApiServer, policy: str, ask: Ask) -> bool:
    return f"'kuangchao-{policy}'" in refusal(server, "stranger", ask)
