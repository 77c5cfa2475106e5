"""One call of the operator's gate over HTTPS, as an agent makes it."""

import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from tests.api.server import PATIENCE, Object

if TYPE_CHECKING:
    from tests.api.fakes import Operator, Site


UNAVAILABLE = 503


class GateRefusedError(Exception):
    """The gate said no."""

    def __init__(self, status: int, code: str) -> None:
        self.status, self.code = status, code
        super().__init__(f"{status} {code}")


def call_gate(
    operator: "Operator", tls: ssl.SSLContext, token: str, op: str, resource: str, request: Object, patience: float
) -> Object:
    """One call over HTTPS. Raises OSError when no answer comes."""
    body = json.dumps({"resource": resource, "request": request}).encode()
    return post(operator, tls, token, f"call/{op}", body, patience)


def post(
    operator: "Operator", tls: ssl.SSLContext, token: str, path: str, body: bytes, patience: float = PATIENCE
) -> Object:
    """One request, made again while no answer comes or the disk under the operator's record is too slow for it, as
    agents do. Raises OSError when there is none within `patience` seconds."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    url, end = f"https://127.0.0.1:{operator.gate_port}/v1/{path}", time.monotonic() + patience
    while True:
        call = urllib.request.Request(url, body, headers, method="POST")
        try:
            with urllib.request.urlopen(call, timeout=PATIENCE, context=tls) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            if error.code != UNAVAILABLE or time.monotonic() > end:
                raise GateRefusedError(error.code, json.load(error)["error"]) from None
        except (OSError, http.client.HTTPException):  # it is not there, was ended while it answered, or gave us up
            if time.monotonic() > end:
                raise
        time.sleep(0.2)


def gate_tls(site: "Site") -> ssl.SSLContext:
    """A client context that trusts what the operator has published in the job's namespace."""
    path = f"/api/v1/namespaces/{site.namespace}/configmaps/kuangchao-trust"
    data = site.server.request("GET", path)["data"]
    assert set(data) == {"ca.crt", "jwks.json", "policy.json", "audit-keys.json", "issuer"}
    return ssl.create_default_context(cadata=data["ca.crt"])
