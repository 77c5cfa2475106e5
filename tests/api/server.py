"""A kube-apiserver of this test session: kubectl and helm against it, and plain HTTPS as an administrator."""

import base64
import http.client
import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
KC = ROOT / "cluster" / "kc"
API = "/apis/kuangchao.io/v1alpha1"
TOO_MANY = 429
"""A busy API server has not looked at the request and wants it again."""
BROKEN = 500
"""From here on an answer says something of the server, such as that its store took too long."""
PATIENCE = 120.0
"""Limit of every wait for something that will happen. It bounds a hang: a machine may be as slow as it is."""

Object = dict[str, Any]


class RefusedError(Exception):
    """The API server answered no; the text is its message."""


class ApiServer:
    """etcd and kube-apiserver on loopback, without nodes. `kubeconfig` is that of an administrator."""

    def __init__(self, directory: Path, watch_pid: int, *, controllers: bool = False) -> None:
        self._directory = directory
        extra = ["--controllers"] if controllers else []
        self.kubeconfig = Path(_run(KC, "api", "up", "--dir", directory, "--watch-pid", watch_pid, *extra).strip())
        self.bin = Path(_run(KC, "bin").strip())
        self._url, self._tls = _connection(self.kubeconfig)

    def close(self) -> None:
        """End both processes and remove their folder."""
        _run(KC, "api", "down", "--dir", self._directory)

    def kubectl(self, *arguments: object, stdin: str | None = None) -> str:
        """Standard output of a kubectl command; RefusedError with its standard error if it fails."""
        return _run(self.bin / "kubectl", "--kubeconfig", self.kubeconfig, *arguments, stdin=stdin)

    def helm(self, *arguments: object) -> str:
        """Standard output of a helm command."""
        return _run(self.bin / "helm", "--kubeconfig", self.kubeconfig, *arguments)

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content: str = "application/json",
        user: str | None = None,
        group: str | None = None,
    ) -> Object:
        """One request, as an administrator or as `user` (of `group`); the answer, or RefusedError. What the server has
        not looked at is asked again, and a read also where it is too busy to answer: it changes nothing."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": content} | ({"Impersonate-User": user} if user else {})
        headers |= {"Impersonate-Group": group} if group else {}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        end = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE, context=self._tls) as answer:
                    return dict(json.load(answer))
            except urllib.error.HTTPError as error:
                again = error.code == TOO_MANY or (method == "GET" and error.code >= BROKEN)
                if not again or time.monotonic() > end:
                    raise RefusedError(json.load(error)["message"]) from None
            except (OSError, http.client.HTTPException):
                if method != "GET" or time.monotonic() > end:
                    raise
            time.sleep(0.2)

    def create(self, manifest: Object, *, dry: bool = False) -> Object:
        """Create one of our objects (namespace default); what the server made of it."""
        return self.request("POST", _collection(manifest["kind"]) + ("?dryRun=All" if dry else ""), manifest)

    def patch(self, kind: str, name: str, change: Object, *, subresource: str = "", dry: bool = False) -> Object:
        """Merge patch of one of our objects."""
        path = "/".join(part for part in (_collection(kind), name, subresource) if part)
        return self.request("PATCH", path + ("?dryRun=All" if dry else ""), change, "application/merge-patch+json")

    def replace(self, manifest: Object, *, dry: bool = False) -> Object:
        """PUT of one of our objects."""
        path = f"{_collection(manifest['kind'])}/{manifest['metadata']['name']}"
        return self.request("PUT", path + ("?dryRun=All" if dry else ""), manifest)

    def get(self, kind: str, name: str) -> Object:
        """One of our objects."""
        return self.request("GET", f"{_collection(kind)}/{name}")


def _collection(kind: str) -> str:
    namespace = "/namespaces/default" if kind in ("TrainingJob", "ParallelPlan") else ""
    return f"{API}{namespace}/{kind.lower()}s"


def _connection(kubeconfig: Path) -> tuple[str, ssl.SSLContext]:
    """Address and TLS settings of a kubeconfig, whether it holds certificates or names files."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    tls = ssl.create_default_context(cadata=_material(cluster, "certificate-authority").decode())
    pair = kubeconfig.with_name("client.pem")
    pair.touch(mode=0o600)
    pair.write_bytes(_material(user, "client-certificate") + b"\n" + _material(user, "client-key"))
    try:
        tls.load_cert_chain(pair)
    finally:
        pair.unlink()
    return str(cluster["server"]), tls


def _material(entry: Object, key: str) -> bytes:
    inline = entry.get(f"{key}-data")
    return base64.b64decode(inline) if inline else Path(entry[key]).read_bytes()


def _run(*arguments: object, stdin: str | None = None) -> str:
    command = [str(argument) for argument in arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    if done.returncode:
        raise RefusedError(done.stderr or done.stdout)
    return done.stdout
