"""People and jobs on a real API server: who may do what with a job that names its owner, and with one that does not."""

import json
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pytest

from tests.api.fakes import eventually
from tests.api.people import ACTORS, APPLY, JOBS, JSON_PATCH, MERGE, NAMESPACE, PEOPLE, Ask, job, refusal, resource
from tests.api.server import API, PATIENCE, ApiServer, Object, RefusedError

ACCESS = {"owner": "olga", "collaborators": ["kolya"], "viewers": ["vera"]}
OWNED, FREE, ROBOT = f"{JOBS}/owned", f"{JOBS}/free", f"{JOBS}/robotic"
NOT_YOURS = "belongs to olga: only its owner, its collaborators and administrators .* ask olga to add you"
NOT_ACCESS = "may be changed only by its owner olga and by administrators"
NOT_FOR = "a job is created by its owner, and you are .* verb own-for on trainingjobs in namespace team-a"
NOT_CLAIMED = "an existing job is given an owner only by administrators and by holders of the verb own-for"
NO_STATUS = "trainingjobs/status is written only by the operator"
WORKERS = {"administrator", "owner", "collaborator", "gitops"}


def _spec(**fields: object) -> Object:
    return {"spec": fields}


class Act(NamedTuple):
    """A request, who may make it, and what everybody else is told."""

    ask: Ask
    allowed: set[str]
    message: str


ACTS = {
    "create-own": Act(Ask("POST", JOBS, job("new", access={"owner": "{user}"})), set(PEOPLE), ""),
    "create-without-owner": Act(Ask("POST", JOBS, job("new")), set(PEOPLE), ""),
    "create-for-another": Act(
        Ask("POST", JOBS, job("new", access={"owner": "olga"})),
        {"administrator", "owner", "delegate", "gitops"},
        NOT_FOR,
    ),
    "create-by-apply": Act(
        Ask("PATCH", f"{JOBS}/new?fieldManager=test", job("new", access={"owner": "olga"}), APPLY),
        {"administrator", "owner", "delegate", "gitops"},
        NOT_FOR,
    ),
    "patch-spec": Act(Ask("PATCH", OWNED, _spec(suspend=True), MERGE), WORKERS, NOT_YOURS),
    "apply-spec": Act(
        Ask("PATCH", f"{OWNED}?fieldManager=test&force=true", job("owned", priority="debug"), APPLY), WORKERS, NOT_YOURS
    ),
    "replace": Act(
        Ask("PUT", OWNED, job("owned", priority="debug", access=ACCESS)), WORKERS, NOT_YOURS
    ),
    "label": Act(
        Ask("PATCH", OWNED, [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}], JSON_PATCH),
        WORKERS,
        NOT_YOURS,
    ),
    "finalizer": Act(Ask("PATCH", OWNED, {"metadata": {"finalizers": ["example.com/x"]}}, MERGE), WORKERS, NOT_YOURS),
    "invite": Act(
        Ask("PATCH", OWNED, _spec(access={"collaborators": ["kolya", "{user}"]}), MERGE),
        WORKERS - {"collaborator"},
        f"{NOT_ACCESS}|{NOT_YOURS}",
    ),
    "take-over": Act(
        Ask("PATCH", OWNED, _spec(access={"owner": "{user}"}), MERGE),
        WORKERS - {"collaborator"},
        f"{NOT_ACCESS}|{NOT_YOURS}",
    ),
    "hand-over": Act(
        Ask("PATCH", OWNED, _spec(access={"owner": "sam"}), MERGE),
        {"administrator", "gitops"},
        f"{NOT_CLAIMED}|{NOT_ACCESS}|{NOT_YOURS}",
    ),
    "disown": Act(
        Ask("PATCH", OWNED, _spec(access=None), MERGE), WORKERS - {"collaborator"}, f"{NOT_ACCESS}|{NOT_YOURS}"
    ),
    "replace-without-access": Act(
        Ask("PUT", OWNED, job("owned")), WORKERS - {"collaborator"}, f"{NOT_ACCESS}|{NOT_YOURS}"
    ),
    "delete": Act(Ask("DELETE", OWNED), WORKERS, NOT_YOURS),
    "delete-collection": Act(Ask("DELETE", f"{JOBS}?fieldSelector=metadata.name=owned"), WORKERS, NOT_YOURS),
    "patch-free": Act(Ask("PATCH", FREE, _spec(suspend=True), MERGE), set(PEOPLE), ""),
    "share-free": Act(Ask("PATCH", FREE, _spec(access={"viewers": ["sam"]}), MERGE), set(PEOPLE), ""),
    "delete-free": Act(Ask("DELETE", FREE), set(PEOPLE), ""),
    "claim-free": Act(
        Ask("PATCH", FREE, _spec(access={"owner": "{user}"}), MERGE),
        {"administrator", "delegate", "gitops"},
        NOT_CLAIMED,
    ),
    "status": Act(Ask("PATCH", f"{OWNED}/status", {"status": {"attempt": 9}}, MERGE), set(), NO_STATUS),
    "status-free": Act(Ask("PATCH", f"{FREE}/status", {"status": {"attempt": 9}}, MERGE), set(), NO_STATUS),
}  # fmt: skip


@pytest.fixture(scope="module")
def jobs(guarded: ApiServer) -> Iterator[ApiServer]:
    """A job that olga made for herself, and one that acts as a ServiceAccount."""
    robot = {"spec": {"serviceAccountName": "robot"}}
    made: dict[str, Object] = {"owned": {"access": ACCESS}, "robotic": {"podOverrides": robot}}
    for name, spec in made.items():
        # The cluster's own administrator may use every account; the owned job is its owner's.
        guarded.request("POST", JOBS, job(name, **spec), user="olga" if name == "owned" else None)
    yield guarded
    for name in made:
        Ask("DELETE", f"{JOBS}/{name}").by(guarded, ACTORS["administrator"], dry=False)


@pytest.mark.parametrize("actor", PEOPLE)
@pytest.mark.parametrize("act", ACTS)
def test_people(jobs: ApiServer, act: str, actor: str) -> None:
    """kubernetes/kubernetes#100096: what the request would store is judged as well as what is stored."""
    ask, allowed, message = ACTS[act]
    if actor in allowed:
        assert ask.by(jobs, ACTORS[actor])
    else:
        with pytest.raises(RefusedError, match=message):
            ask.by(jobs, ACTORS[actor])


FINALIZER = Ask("PATCH", OWNED, {"metadata": {"finalizers": ["kuangchao.io/cleanup"]}}, MERGE)
MACHINES = [
    ("operator", FINALIZER, ""),
    ("operator", ACTS["status"].ask, ""),
    ("operator", ACTS["delete"].ask, ""),
    ("operator", ACTS["create-without-owner"].ask, "cannot create resource"),
    ("collector", FINALIZER, ""),
    ("collector", ACTS["delete"].ask, ""),
    ("collector", ACTS["status"].ask, NO_STATUS),
    ("agent", ACTS["delete"].ask, "cannot delete resource"),
]


@pytest.mark.parametrize(("actor", "ask", "message"), MACHINES)
def test_machines(jobs: ApiServer, actor: str, ask: Ask, message: str) -> None:
    said = refusal(jobs, actor, ask)
    assert message in said
    assert bool(said) == bool(message)


def test_being_named_an_administrator_brings_the_rights(jobs: ApiServer) -> None:
    """No RBAC of these people but the chart's own binding."""
    other = ACTORS["administrator"]._replace(user="adam")
    assert ACTS["invite"].ask.by(jobs, other)
    assert Ask("POST", f"{API}/resourcepools", resource("ResourcePool", {})).by(jobs, other)
    with pytest.raises(RefusedError, match="cannot patch resource"):
        ACTS["invite"].ask.by(jobs, ACTORS["administrator"]._replace(user="adam", group=None))


def _as(account: str, field: str = "serviceAccountName") -> Object:
    return {"podOverrides": {"spec": {field: account}}}


USES = {
    "create": (Ask("POST", JOBS, job("new", **_as("robot"))), False),
    "create-with-the-old-name": (Ask("POST", JOBS, job("new", **_as("robot", "serviceAccount"))), False),
    "the-operators-own": (Ask("POST", JOBS, job("new", **_as("kuangchao-operator"))), False),
    "default": (Ask("POST", JOBS, job("new", **_as("default"))), False),
    "add": (Ask("PATCH", FREE, _spec(**_as("robot")), MERGE), False),
    "add-by-apply": (Ask("PATCH", f"{FREE}?fieldManager=test&force=true", job("free", **_as("robot")), APPLY), False),
    "change-what-it-runs": (Ask("PATCH", ROBOT, _spec(taskArgs={"a": "b"}), MERGE), False),
    "label": (Ask("PATCH", ROBOT, {"metadata": {"labels": {"a": "b"}}}, MERGE), True),
    "take-it-out": (Ask("PATCH", ROBOT, _spec(podOverrides=None), MERGE), True),
    "none": (Ask("POST", JOBS, job("new", **_as(""))), True),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("actor", ["administrator", "owner", "gitops"])
def test_naming_an_account_needs_the_right_to_use_it(jobs: ApiServer, use: str, actor: str) -> None:
    """openshift/cluster-logging-operator#3400, CVE-2026-10609: any account that a user named was acted as."""
    ask, free = USES[use]
    said = refusal(jobs, actor, ask)
    assert bool(said) != free
    assert free or "only users with the verb use on this ServiceAccount may name it" in said


def test_the_right_to_use_one_account_is_for_that_account(jobs: ApiServer) -> None:
    rule = {"apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": ["robot"], "verbs": ["use"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "use-robot"}}
    jobs.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=json.dumps({**role, "rules": [rule]}))
    jobs.kubectl("create", "rolebinding", "use-robot", "-n", NAMESPACE, "--role=use-robot", "--user=sam")
    for use in ("create", "create-with-the-old-name", "add", "change-what-it-runs"):
        eventually(partial(_granted, jobs, USES[use][0]), use)
    assert "=kuangchao-operator: only users" in refusal(jobs, "stranger", USES["the-operators-own"][0])
    both = {"podOverrides": {"spec": {"serviceAccountName": "robot", "serviceAccount": "kuangchao-operator"}}}
    assert "verb use" in refusal(jobs, "stranger", Ask("POST", JOBS, job("new", **both)))


def _granted(server: ApiServer, ask: Ask) -> bool:
    return not refusal(server, "stranger", ask)


def test_a_namespace_that_goes_takes_its_owned_jobs_along(guarded: ApiServer) -> None:
    """With the controller that does it: nobody in a cluster could remove the namespace if it were refused."""
    guarded.kubectl("create", "namespace", "doomed")
    path = f"{API}/namespaces/doomed/trainingjobs"
    guarded.request("POST", path, job("one", access={"owner": "olga"}), user="olga")
    guarded.kubectl("delete", "namespace", "doomed", f"--timeout={PATIENCE:.0f}s")
    assert _names(guarded, path) == []


def _names(server: ApiServer, path: str) -> list[str]:
    return [body["metadata"]["name"] for body in server.request("GET", path)["items"]]


ROLES = {
    "kuangchao-viewer": {"get"},
    "kuangchao-collaborator": {"get", "update", "patch"},
    "kuangchao-editor": {"get", "create", "update", "patch", "delete"},
    "kuangchao-own-for": {"own-for"},
    "kuangchao-administrator": {"get", "create", "update", "patch", "delete", "own-for"},
}


@pytest.mark.parametrize("role", ROLES)
def test_roles_of_the_chart(guarded: ApiServer, role: str) -> None:
    user = f"only-{role}"
    guarded.kubectl("create", "clusterrolebinding", user, f"--clusterrole={role}", f"--user={user}")
    verbs = ("get", "create", "update", "patch", "delete", "own-for")

    def granted() -> set[str]:
        return {verb for verb in verbs if _may(guarded, user, verb, "trainingjobs")}

    eventually(lambda: granted() == ROLES[role], lambda: f"{granted()} is granted")
    assert _may(guarded, user, "update", "resourcepools") == (role == "kuangchao-administrator")
    assert not _may(guarded, user, "update", "trainingjobs", "status")


def _may(server: ApiServer, user: str, verb: str, resource: str, part: str = "") -> bool:
    attributes = {"verb": verb, "group": "kuangchao.io", "resource": resource, "subresource": part}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes | {"namespace": NAMESPACE}},
    }
    answer = server.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, user=user)
    return bool(answer["status"]["allowed"])
