"""Audit queries by port-forward: which pod is asked, what is sent, and what a person reads when it does not work."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from typer.testing import CliRunner
from websocket import WebSocketBadStatusException

from kuangchao_contracts.errors import InvalidInputError, PermissionDeniedError, UnavailableError
from kuangchao_operator.cli import audit_commands, cluster, portforward
from kuangchao_operator.cli.main import app

RECORD = {
    "ts": "2026-01-31T12:00:00Z", "opid": "1", "stage": "result", "layer": "execution", "op": "execution.launch",
    "resource": "team-a/trainingjobs/digits", "subject": "layer:execution", "job": "digits", "jobUid": "u",
    "attempt": 1, "decision": "allow", "reason": "", "count": 1,
}  # fmt: skip


def pod(name: str, ready: str = "True", **metadata: str) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


class Answers(BaseHTTPRequestHandler):
    """Governance behind one end of a socket pair; `answers` are taken in turn, `asked` is what was asked for."""

    protocol_version = "HTTP/1.1"
    answers: list[tuple[int, Any]]
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, answer = self.answers.pop(0)
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""


class Forward:
    """As the package's PortForward, without an API server."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self._near, far = socket.socketpair()
        handler = type("Handler", (Answers,), {"answers": list(answers), "asked": []})
        self.asked: list[str] = handler.asked  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._serve, args=(handler, far), daemon=True)
        self._thread.start()

    @staticmethod
    def _serve(handler: Any, far: socket.socket) -> None:
        with closing(far):
            if handler.answers:
                handler(far, ("", 0), None)

    def socket(self, port: int) -> socket.socket:
        assert port == 8080
        return self._near

    def error(self, port: int) -> str | None:
        return "connection refused inside the pod" if port == 8080 else None

    def close(self) -> None:
        self._near.close()
        self._thread.join(10)


class Api:
    """Stands in for the connection: answers the pod list, notes what is asked."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods, self.queries = pods, list[tuple[str, Mapping[str, str]]]()
        self.api: Any = None

    def items(self, path: str, query: Mapping[str, str]) -> Iterator[Any]:
        self.queries.append((path, query))
        return iter(self.pods)


def forwards(monkeypatch: pytest.MonkeyPatch, forward: Any) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def made(_: Any, *arguments: Any, **options: Any) -> Any:
        calls.append((*arguments, options))
        if isinstance(forward, Forward):
            return forward
        return forward()

    monkeypatch.setattr(portforward, "portforward", made)
    return calls


def page(*sequence: int, after: int | None = None) -> tuple[int, Any]:
    records = [{"seq": seq, "previous": "", "record": RECORD} for seq in sequence]
    return 200, {"records": records, "nextAfter": after, "droppedReads": 0}


def refused(status: int) -> Any:
    """What the package makes of a WebSocket that the API server refuses."""

    def call() -> Any:
        try:
            raise WebSocketBadStatusException(f"Handshake status {status} -+-+- {{'x': 'y'}} -+-+- b'...'", status)
        except WebSocketBadStatusException as error:
            raise ApiException(status=0, reason=str(error))  # noqa: B904  # as the package does

    return call


def ask(api: Api, **filters: str) -> Any:
    with audit_commands.governance(api, "kuangchao-system") as port:  # type: ignore[arg-type]
        return port.get("/v1/audit", filters)


def test_query_goes_to_the_ready_pod_and_follows_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(pod("starting", "False"), pod("leaving", deletionTimestamp="2026-01-31T12:00:00Z"), pod("serving"))
    forward = Forward(page(1, 2, after=2), page(3))
    calls = forwards(monkeypatch, forward)
    monkeypatch.setattr(cluster, "Cluster", lambda _: api)
    done = CliRunner().invoke(app, ["audit", "query", "--job", "digits", "-o", "json"])
    assert done.exit_code == 0, done.output
    assert [item["seq"] for item in json.loads(done.stdout)["records"]] == [1, 2, 3]
    assert calls == [("serving", "kuangchao-system", {"ports": "8080"})]
    assert [target.split("?")[0] for target in forward.asked] == ["/v1/audit", "/v1/audit"]
    assert "job=digits" in forward.asked[0]
    assert "after=2" in forward.asked[1]
    ((path, query),) = api.queries
    assert path == "/api/v1/namespaces/kuangchao-system/pods"
    assert query["labelSelector"] == "app.kubernetes.io/name=kuangchao,app.kubernetes.io/component=governance"


@pytest.mark.parametrize("status", [401, 403])
def test_refusal_names_the_verbs_and_the_role(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    forwards(monkeypatch, refused(status))
    with pytest.raises(PermissionDeniedError, match=r"get and create on pods/portforward.*Role kuangchao-auditor"):
        ask(Api(pod("serving")))


def test_other_failures_are_told_without_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    forwards(monkeypatch, refused(500))
    with pytest.raises(UnavailableError, match=r"kuangchao-system/serving: Handshake status 500$"):
        ask(Api(pod("serving")))


def test_no_ready_pod_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = forwards(monkeypatch, refused(500))
    with pytest.raises(UnavailableError, match=r"none of 1 pods with .* in namespace kuangchao-system is Ready"):
        ask(Api(pod("starting", "False")))
    assert not calls


def test_port_that_nobody_listens_on(monkeypatch: pytest.MonkeyPatch) -> None:
    forwards(monkeypatch, Forward())
    with pytest.raises(UnavailableError, match="pod serving does not answer on its port 8080: connection refused"):
        ask(Api(pod("serving")))


def test_lost_forward_never_falls_back_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    forwards(monkeypatch, Forward(page(1)))
    dialled: list[Any] = []
    monkeypatch.setattr(socket, "create_connection", lambda *a, **_: dialled.append(a))
    with audit_commands.governance(Api(pod("serving")), "kuangchao-system") as port:  # type: ignore[arg-type]
        port._http.close()
        with pytest.raises(UnavailableError, match="does not answer"):
            port.get("/v1/audit", {})
    assert not dialled


def test_what_governance_refuses_is_not_called_a_lack_of_rights_to_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [(400, InvalidInputError), (403, PermissionDeniedError), (503, UnavailableError)]
    for status, kind in refusals:
        forwards(monkeypatch, Forward((status, {"error": "x", "message": "said by governance", "opid": "1"})))
        with pytest.raises(kind, match="said by governance") as caught:
            ask(Api(pod("serving")))
        assert "kuangchao-auditor" not in str(caught.value)


def test_handshake_that_never_ends_is_given_up() -> None:
    never = threading.Event()
    with pytest.raises(UnavailableError, match="no port-forward after"):
        portforward.within(0.01, never.wait)
    never.set()
