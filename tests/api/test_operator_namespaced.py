"""The operator confined to given namespaces, which is the chart's default: its account has no right elsewhere."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import yaml

from tests.api.fakes import CHART, RELEASE, Operator, Site, eventually
from tests.api.kubelets import Gang, Kubelets, running
from tests.api.server import ApiServer, RefusedError

ACCOUNT = "confined"
_NUMBERS = count()


@pytest.fixture
def confined(control_plane: ApiServer, operator: Operator, tmp_path: Path) -> Iterator[Site]:
    """A site whose operator may act in this one namespace; the session's operator pauses meanwhile."""
    site = Site(control_plane, operator, f"confined-{next(_NUMBERS)}", {"a": 2, "b": 2})
    _grant(control_plane, site.namespace)
    site.operator = Operator(control_plane, tmp_path, ACCOUNT, KUANGCHAO_JOB_NAMESPACES=site.namespace)
    operator.kill()
    try:
        site.operator.start()
        site.settle()
        yield site
    finally:
        site.remove()
        site.operator.stop()
        operator.start()
        _withdraw(control_plane)


def _grant(server: ApiServer, namespace: str) -> None:
    """The chart's own rules for this one namespace, for an account that has nothing else."""
    server.kubectl("create", "serviceaccount", ACCOUNT, "-n", RELEASE)
    account = f"{RELEASE}:{ACCOUNT}"
    server.kubectl("create", "clusterrolebinding", ACCOUNT, "--clusterrole=kuangchao-operator",
                   f"--serviceaccount={account}")  # fmt: skip
    server.kubectl("create", "rolebinding", ACCOUNT, "-n", RELEASE, "--role=kuangchao-operator",
                   f"--serviceaccount={account}")  # fmt: skip
    values = ("--set", f"jobNamespaces={{{namespace}}}", "--kube-version", "1.30.0")
    rendered = server.helm("template", "kuangchao", CHART, "-n", RELEASE, *values)
    role = next(
        part for part in yaml.safe_load_all(rendered)
        if part and part["kind"] == "Role" and part["metadata"]["namespace"] == namespace
    )  # fmt: skip
    server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(role))
    server.kubectl("create", "rolebinding", ACCOUNT, "-n", namespace, f"--role={role['metadata']['name']}",
                   f"--serviceaccount={account}")  # fmt: skip


def _withdraw(server: ApiServer) -> None:
    server.kubectl("delete", "serviceaccount", "-n", RELEASE, ACCOUNT)
    server.kubectl("delete", "clusterrolebinding", ACCOUNT)
    server.kubectl("delete", "rolebinding", "-n", RELEASE, ACCOUNT)


def test_a_job_runs_with_rights_in_one_namespace_only(confined: Site) -> None:
    user = f"system:serviceaccount:{RELEASE}:{ACCOUNT}"
    with pytest.raises(RefusedError, match="forbidden"):
        confined.server.request("DELETE", "/api/v1/namespaces/default/pods/x", user=user)
    with pytest.raises(RefusedError, match="forbidden"):
        confined.server.request("GET", "/api/v1/namespaces/default/secrets/x", user=user)
    job = confined.job("inside", count=2, training={"steps": 5})
    with running(Kubelets(confined)):
        gang = Gang(job, job.wait_pods(2))
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            gang.end(0, step=5)
            job.wait_phase("Complete")
        job.wait(lambda: not job.pods() and not job.children("secrets"), "reclaimed")


def test_a_namespace_that_is_deleted_takes_its_jobs_along(confined: Site) -> None:
    """The Role goes first, and with it the rights to end what the job has; the finalizer must not stay for that."""
    job = confined.job("doomed", count=2)
    with running(Kubelets(confined)):
        gang = Gang(job, job.wait_pods(2))
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            confined.server.kubectl("delete", "rolebinding", ACCOUNT, "-n", confined.namespace)
            confined.server.kubectl("delete", "namespace", confined.namespace, "--wait=false")
            eventually(lambda: confined.namespace not in confined.server.kubectl("get", "namespaces"), "it is gone")
    eventually(lambda: confined.pool_object()["status"]["reserved"] == 0, "the devices are free")
