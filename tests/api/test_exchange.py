"""Exchange of account tokens at the real gate, reviewed by a real API server. No kubelet is needed: a token that is
bound to a pod object is what a kubelet would project."""

import base64
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from kuangchao_contracts.audit import AuditQuery
from kuangchao_operator.audit.query import query
from tests.api.fakes import Job, Operator, Site, eventually
from tests.api.gatecall import GateRefusedError, gate_tls, post
from tests.api.kubelets import Gang, Kubelets, running
from tests.api.server import ApiServer, Object

AUDIENCE = "kuangchao-token-exchange"


@pytest.fixture
def site(control_plane: ApiServer, operator: Operator, tmp_path: Path) -> Iterator[Site]:
    """A site whose operator makes no token Secrets; the session's operator pauses meanwhile."""
    own = Operator(control_plane, tmp_path, KUANGCHAO_EXCHANGE_ABOVE_PODS="0")
    site = Site(control_plane, own, "exchange", {"a": 2, "b": 2})
    operator.kill()
    try:
        own.start()
        site.settle()
        yield site
    finally:
        site.remove()
        own.stop()
        operator.start()


class Exchange:
    """What the agents of a job would do, and others who try the same."""

    def __init__(self, job: Job) -> None:
        self.job, self.site = job, job.site
        self._tls: ssl.SSLContext = gate_tls(job.site)

    def account_token(self, pod: Object | None, *, account: str = "default", audience: str | None = AUDIENCE) -> str:
        """A token of the TokenRequest API, bound to a pod or to nothing."""
        spec: Object = {"expirationSeconds": 600, **({"audiences": [audience]} if audience else {})}
        if pod is not None:
            metadata = pod["metadata"]
            spec["boundObjectRef"] = {
                "apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"],
            }  # fmt: skip
        path = f"/api/v1/namespaces/{self.site.namespace}/serviceaccounts/{account}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.site.server.request("POST", path, request)["status"]["token"])

    def ask(self, token: str) -> Object:
        """One exchange."""
        return post(self.site.operator, self._tls, token, "token", b"")

    def refused(self, token: str) -> tuple[int, str]:
        """How an exchange is refused."""
        with pytest.raises(GateRefusedError) as caught:
            self.ask(token)
        return caught.value.status, caught.value.code

    def reasons(self) -> list[str]:
        """Details of the denials that were recorded."""
        page = query(self.site.operator.directory / "audit", AuditQuery(operation="token.exchange"))
        return [item.record.detail for item in page.records if item.record.decision == "deny"]


def claims(token: str) -> Object:
    part = token.split(".")[1]
    return dict(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))))


def test_pods_exchange_their_account_token_and_nobody_else_does(site: Site) -> None:
    job = site.job("large", count=2)
    with running(kubelets := Kubelets(site)):
        pods = job.wait_pods(2)
        assert job.children("secrets") == []
        exchange = Exchange(job)
        bundle = exchange.ask(exchange.account_token(pods[0]))
        lease = claims(bundle["tokens"]["agent/kc:execution"])
        assert (lease["pod"], lease["puid"]) == (pods[0]["metadata"]["name"], pods[0]["metadata"]["uid"])
        assert bundle["attempt"] == 1
        assert _joins(job, pods[0], bundle, pods[0]["metadata"]["uid"]) == "waits"
        assert _joins(job, pods[0], bundle, pods[1]["metadata"]["uid"]) == "denied"
        assert _joins(job, pods[0], bundle, "") == "denied"
        _strangers(site, exchange, pods)
        job.wait(lambda: all(pod["status"]["phase"] == "Running" for pod in job.pods()), "kubelets have the pods")
        _terminating(site, exchange, kubelets, pods)


def _joins(job: Job, pod: Object, bundle: Object, uid: str) -> str:
    gang = Gang(job, [pod])
    labels = pod["metadata"]["labels"]
    request = {
        "attempt": 1, "incarnation": int(labels["kuangchao.io/incarnation"]), "host": "127.0.0.1", "podUid": uid,
        "podIndex": int(labels["kuangchao.io/pod-index"]), "pod": pod["metadata"]["name"],
    }  # fmt: skip
    resource = f"{job.site.namespace}/jobs/{job.name}"
    try:
        answer = gang.call_as(bundle["tokens"]["agent/kc:execution"], "execution.join", resource, request)
    except GateRefusedError as error:
        return error.code
    return "joined" if answer["ready"] else "waits"


def _strangers(site: Site, exchange: Exchange, pods: list[Object]) -> None:
    site.server.kubectl("create", "serviceaccount", "other", "-n", site.namespace)
    stranger = {
        "metadata": {"name": "stranger", "namespace": site.namespace},
        "spec": {"containers": [{"name": "c", "image": "i"}], "serviceAccountName": "other"},
    }
    pod = site.server.request("POST", f"/api/v1/namespaces/{site.namespace}/pods", stranger)
    tokens = [
        exchange.account_token(pods[0], audience=None),
        exchange.account_token(None),
        exchange.account_token(None, account="other"),
        exchange.account_token(pod, account="other"),
        "aaa.bbb.ccc",
        exchange.ask(exchange.account_token(pods[0]))["tokens"]["agent/kc:execution"],
    ]
    before = len(exchange.reasons())
    assert {exchange.refused(token) for token in tokens} == {(403, "denied")}
    eventually(lambda: len(exchange.reasons()) == before + len(tokens), exchange.reasons)
    written = site.operator.written()
    assert not [token for token in tokens if token in written]


def _terminating(site: Site, exchange: Exchange, kubelets: Kubelets, pods: list[Object]) -> None:
    """The API server still knows its token; a pod that ends gets nothing new, and neither does one that is gone."""
    kubelets.dead = {site.node("a"), site.node("b")}
    token = exchange.account_token(pods[1])
    assert exchange.ask(token)["attempt"] == 1
    path = f"/api/v1/namespaces/{site.namespace}/pods/{pods[1]['metadata']['name']}"
    site.server.request("DELETE", path)
    ending = "the pod is being deleted"
    # asked at once it is refused for having been there a moment ago
    eventually(lambda: _denied(exchange, token) and ending in exchange.reasons(), "refused while it terminates")
    site.server.request("DELETE", path, {"gracePeriodSeconds": 0})
    assert exchange.refused(token) == (403, "denied")


def _denied(exchange: Exchange, token: str) -> bool:
    try:
        exchange.ask(token)
    except GateRefusedError as error:
        return (error.status, error.code) == (403, "denied")
    return False
