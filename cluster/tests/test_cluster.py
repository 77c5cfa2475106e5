"""The embedded cluster does what the other tests rely on.

Needs root and what `cluster/kc install` and `cluster/kc image-base` made. The tests use the running
cluster, or start it. Those that end it run only with KC_TEST_DESTRUCTIVE=1.
"""

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

KC = str(pathlib.Path(__file__).resolve().parents[1] / "kc")
BASE = "localhost/kuangchao-base:1"

PATIENCE = 600.0
"""Limit of every wait for something that will happen. It bounds a hang: a machine may be as slow as it is."""
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(6 * PATIENCE),
    pytest.mark.skipif(os.geteuid() != 0, reason="the cluster needs root"),
]
destructive = pytest.mark.skipif(
    os.environ.get("KC_TEST_DESTRUCTIVE") != "1", reason="ends the cluster; set KC_TEST_DESTRUCTIVE=1"
)


def kc(*args, check=True, stdin=None, timeout=2 * PATIENCE):
    """Run one kc command and return what it printed."""
    done = subprocess.run([KC, *args], input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    if check and done.returncode:
        raise AssertionError(f"kc {args}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def apply(*objects):
    """Create objects from dictionaries."""
    kc("kubectl", "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def until(condition):
    """Wait until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{condition} still false after {PATIENCE} s"
        time.sleep(0.2)


def ready(node):
    """Return the node's Ready condition: True, False or Unknown."""
    path = '{.status.conditions[?(@.type=="Ready")].status}'
    return kc("kubectl", "get", "node", node, "-o", "jsonpath=" + path)


def sleeper(name, namespace, node=None, **spec):
    """Return a pod that sleeps."""
    container = {"name": "main", "image": BASE, "command": ["sleep", "3600"]}
    container.update(spec.pop("container", {}))
    body = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
    if node:
        body["nodeSelector"] = {"kc.cluster/index": str(node)}
    meta = {"name": name, "namespace": namespace, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body}


def pod_ready(namespace, *names):
    kc(
        "kubectl",
        "-n",
        namespace,
        "wait",
        "--for=condition=Ready",
        f"--timeout={PATIENCE:.0f}s",
        *("pod/" + n for n in names),
    )


def python_in(namespace, pod, code, check=True):
    return kc("kubectl", "-n", namespace, "exec", pod, "--", "python3", "-c", code, check=check)


@pytest.fixture(scope="module")
def cluster():
    kc("up", "--images", BASE)
    return KC


@pytest.fixture(scope="module")
def namespace(cluster):
    name = f"kc-test-{os.getpid()}"
    kc("kubectl", "create", "namespace", name)
    until(lambda: "default" in kc("kubectl", "-n", name, "get", "serviceaccount", check=False))
    yield name
    kc("kubectl", "delete", "namespace", name, "--wait=false", check=False)


def test_service_names_resolve_and_connect_across_nodes(namespace):
    server = sleeper("server", namespace, 1, container={"command": ["python3", "-m", "http.server", "8080"]})
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "server", "namespace": namespace},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    apply(server, service, sleeper("client", namespace, 2))
    pod_ready(namespace, "server", "client")
    code = "import urllib.request as u; print(u.urlopen('http://server', timeout=2).status)"
    until(lambda: python_in(namespace, "client", code, check=False).strip() == "200")


def test_claim_of_default_class_gets_a_volume_that_two_nodes_share(namespace):
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared", "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    spec = {
        "securityContext": {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532},
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "shared"}}],
        "container": {"volumeMounts": [{"name": "v", "mountPath": "/data"}]},
    }
    apply(claim, sleeper("writer", namespace, 1, **spec), sleeper("reader", namespace, 2, **spec))
    pod_ready(namespace, "writer", "reader")
    python_in(namespace, "writer", "open('/data/x', 'w').write('hello')")
    assert python_in(namespace, "reader", "print(open('/data/x').read())").strip() == "hello"


def test_lost_node_becomes_unknown_and_returns(namespace):
    kc("node", "crash", "3")
    try:
        until(lambda: ready("node-3") == "Unknown")
    finally:
        kc("node", "boot", "3")
    until(lambda: ready("node-3") == "True")


def test_partition_cuts_two_nodes_and_nothing_else(namespace):
    apply(
        sleeper("left", namespace, 1),
        sleeper("right", namespace, 2, container={"command": ["python3", "-m", "http.server", "8080"]}),
        sleeper("third", namespace, 3),
    )
    pod_ready(namespace, "left", "right", "third")
    address = kc("kubectl", "-n", namespace, "get", "pod", "right", "-o", "jsonpath={.status.podIP}")
    code = f"import socket; socket.create_connection(('{address}', 8080), 1); print('ok')"

    def reaches(pod):
        return python_in(namespace, pod, code, check=False).strip() == "ok"

    until(lambda: reaches("left"))
    kc("partition", "1", "2")
    try:
        assert not reaches("left")
        until(lambda: reaches("third"))
        assert not reaches("left")
        until(lambda: ready("node-1") == ready("node-2") == "True")
    finally:
        kc("heal")
    until(lambda: reaches("left"))


@pytest.mark.parametrize("component", ["apiserver", "etcd", "kcm", "scheduler", "registry", "forwarder", "provisioner"])
def test_up_restores_a_killed_component(cluster, component):
    kc("kill-cp", component)
    assert f"{component} DOWN" in kc("status")
    kc("up")
    assert f"{component} up" in kc("status")
    until(lambda: ready("node-1") == "True")


def test_api_tier_runs_side_by_side_and_ends_with_the_watched_process(tmp_path):
    watched = subprocess.Popen(["sleep", "300"])
    first = kc("api", "up", "--dir", str(tmp_path / "a"), "--watch-pid", str(watched.pid)).strip()
    second = kc("api", "up", "--dir", str(tmp_path / "b")).strip()
    kubectl = kc("bin").strip() + "/kubectl"
    for config in (first, second):
        subprocess.run([kubectl, "--kubeconfig", config, "get", "--raw", "/readyz"], check=True, capture_output=True)
    watched.kill()
    watched.wait()
    until(lambda: not subprocess.run(["pgrep", "-f", str(tmp_path / "a")], capture_output=True).stdout)
    kc("api", "down", "--dir", str(tmp_path / "b"))
    assert not subprocess.run(["pgrep", "-f", str(tmp_path / "b")], capture_output=True).stdout
    assert not (tmp_path / "b").exists()


def leftovers():
    """Return what of the cluster is left on the machine."""
    mounts = pathlib.Path("/proc/mounts").read_text().splitlines()
    found = [line for line in mounts if "kuangchao" in line or "/run/netns/kc-" in line]
    found += [str(p) for p in pathlib.Path("/run/netns").glob("kc-*")]
    found += [m.split()[1] + "/kc" for m in mounts if " cgroup" in m and pathlib.Path(m.split()[1] + "/kc").exists()]
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    found += [line for line in links.splitlines() if line.startswith("kc")]
    state = subprocess.run(["pgrep", "-af", "/var/lib/kuangchao"], capture_output=True, text=True, check=False).stdout
    return found + state.splitlines()


@destructive
@pytest.mark.parametrize("seconds", [0.3, 1.5, 4.0, 6.0, 8.0])
def test_purge_leaves_nothing_after_a_killed_up(seconds):
    kc("down", "--purge")
    up = subprocess.Popen([KC, "up"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    up.send_signal(signal.SIGKILL)
    up.wait()
    kc("down", "--purge")
    until(lambda: not leftovers())


@destructive
@pytest.mark.parametrize("seconds", [1.0, 5.0])
def test_up_completes_what_a_killed_up_began(seconds):
    kc("down", "--purge")
    up = subprocess.Popen([KC, "up"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    up.send_signal(signal.SIGKILL)
    up.wait()
    kc("up")
    until(lambda: ready("node-3") == "True")
