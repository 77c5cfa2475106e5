"""`hack/deploy.sh` for clusters that are not ours: the commands it would give, with every client replaced by a stub."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FOLDER = "/var/tmp/kuangchao-kind"
# mkdir and chmod too: the folder that kind nodes share is no business of a test.
STUBS = ("docker", "kind", "kubectl", "helm", "mkdir", "chmod")
STUB = """#!/bin/sh
line=${0##*/} answer="$ANSWERS/${0##*/}${1:+ $1}${2:+ $2}"
for argument in "$@"; do line="$line\t$argument"; done
printf '%s\\n' "$line" >> "$RECORD"
case "$*" in *"-f -") cat > /dev/null ;; esac
[ -e "$answer" ] || exit 0
{ read -r code; cat; } < "$answer"
exit "$code"
"""


class Deploy:
    """A run of the script; `commands` are what it called, images without their tags."""

    def __init__(self, directory: Path, **answers: tuple[int, str]) -> None:
        self._bin, self._answers, self._record = directory / "bin", directory / "answers", directory / "record"
        self._bin.mkdir()
        self._answers.mkdir()
        self._record.touch()
        for name in STUBS:
            (self._bin / name).write_text(STUB)
            (self._bin / name).chmod(0o755)
        for key, (code, text) in answers.items():
            (self._answers / key.replace("_", " ")).write_text(f"{code}\n{text}\n")

    def run(self, cluster: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {
            **os.environ, "PATH": f"{self._bin}:{os.environ['PATH']}", "CLUSTER": cluster,
            "RECORD": str(self._record), "ANSWERS": str(self._answers), **environment,
        }  # fmt: skip
        command = ["bash", str(ROOT / "hack/deploy.sh"), "team-b"]
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)

    @property
    def commands(self) -> list[list[str]]:
        return [line.split("\t") for line in self._record.read_text().splitlines()]

    def of(self, *start: str) -> list[list[str]]:
        """Commands that begin like this."""
        return [command for command in self.commands if command[: len(start)] == list(start)]


def images(deploy: Deploy) -> tuple[str, str]:
    """The two images that were built, as NAME:TAG."""
    operator, worker = (command[command.index("-t") + 1] for command in deploy.of("docker", "build"))
    assert operator.startswith("kuangchao-operator:")
    assert worker.startswith("kuangchao-worker:")
    return operator, worker


def install(prefix: str, operator: str, worker: str) -> list[str]:
    name, tag = operator.split(":")
    return [
        "helm", "upgrade", "--install", "kuangchao", "charts/kuangchao", "-n", "kuangchao-system", "--create-namespace",
        "--wait", "--timeout", "15m", "--set", f"image.repository={prefix}{name}", "--set-string", f"image.tag={tag}",
        "--set", f"worker.image={prefix}{worker}", "--set", "jobNamespaces={team-b}",
    ]  # fmt: skip


WAITS = [
    ["kubectl", "wait", "--for=condition=Established", "crd",
     "-l", "app.kubernetes.io/part-of=kuangchao", "--timeout=300s"],
    ["kubectl", "apply", "-f", "examples/pool.yaml"],
    ["kubectl", "wait", "rpool/cpu", "--for=condition=Ready", "--timeout=600s"],
    ["kubectl", "get", "rpool", "cpu", "--no-headers"],
]  # fmt: skip
NAMESPACE = [
    ["kubectl", "create", "namespace", "team-b", "--dry-run=client", "-o", "yaml"],
    ["kubectl", "apply", "-f", "-"],
]


def test_kind_from_nothing(tmp_path: Path) -> None:
    deploy = Deploy(tmp_path)
    done = deploy.run("kind")
    assert done.returncode == 0, done.stderr
    operator, worker = images(deploy)
    piped = deploy.commands[8:10]  # both ends of a pipe: which is noted first is chance
    assert sorted(piped) == sorted(NAMESPACE)
    assert deploy.commands[:8] + deploy.commands[10:] == [
        ["docker", "info"],
        ["mkdir", "-p", FOLDER],
        ["chmod", "2777", FOLDER],
        ["kind", "get", "clusters"],
        ["kind", "create", "cluster", "--name", "kuangchao", "--config", "hack/kind.yaml"],
        ["docker", "build", "-q", "-f", "Dockerfile.operator", "-t", operator, "."],
        ["docker", "build", "-q", "-f", "Dockerfile.worker", "-t", worker, "."],
        ["kind", "load", "docker-image", "--name", "kuangchao", operator, worker],
        ["kubectl", "apply", "-n", "team-b", "-f", "hack/kind-checkpoints.yaml"],
        install("", operator, worker),
        *WAITS,
    ]


def test_kind_cluster_that_is_there_is_used(tmp_path: Path) -> None:
    deploy = Deploy(tmp_path, kind_get_clusters=(0, "other\nkuangchao"))
    assert deploy.run("kind").returncode == 0
    assert not deploy.of("kind", "create")
    assert deploy.of("helm")


def test_kind_without_docker_says_so_and_does_nothing(tmp_path: Path) -> None:
    deploy = Deploy(tmp_path, docker_info=(1, ""))
    done = deploy.run("kind")
    assert done.returncode == 1
    assert "needs a Docker engine" in done.stderr
    assert deploy.commands == [["docker", "info"]]


def test_existing_cluster_takes_images_from_its_registry(tmp_path: Path) -> None:
    deploy = Deploy(tmp_path)
    done = deploy.run("existing", IMAGE_PREFIX="registry.test/ml")
    assert done.returncode == 0, done.stderr
    assert not deploy.of("docker")
    assert not deploy.of("kind")
    (helm,) = deploy.of("helm")
    worker = next(part for part in helm if part.startswith("worker.image="))
    assert worker.startswith("worker.image=registry.test/ml/kuangchao-worker:")
    assert "image.repository=registry.test/ml/kuangchao-operator" in helm


@pytest.mark.parametrize(
    ("environment", "answers", "message"),
    [
        ({}, {}, "needs IMAGE_PREFIX"),
        ({"IMAGE_PREFIX": "r"}, {"kubectl_get_-n": (1, "")}, "needs a ReadWriteMany claim: team-b/checkpoints"),
    ],
)
def test_existing_cluster_names_what_lacks(
    tmp_path: Path, environment: dict[str, str], answers: dict[str, Any], message: str
) -> None:
    deploy = Deploy(tmp_path, **answers)
    done = deploy.run("existing", **environment)
    assert done.returncode == 1
    assert message in done.stderr
    assert not deploy.of("helm")


def test_kind_nodes_share_the_folder_that_the_claim_is_made_of() -> None:
    nodes = yaml.safe_load((ROOT / "hack/kind.yaml").read_text())["nodes"]
    volume, claim = yaml.safe_load_all((ROOT / "hack/kind-checkpoints.yaml").read_text())
    mounts = [{"hostPath": FOLDER, "containerPath": volume["spec"]["hostPath"]["path"]}]
    assert [node["extraMounts"] for node in nodes] == [mounts] * len(nodes)
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert claim["spec"]["storageClassName"] == volume["spec"]["storageClassName"]
    job = yaml.safe_load((ROOT / "examples/digits.yaml").read_text())
    assert job["spec"]["checkpoint"]["storage"]["claimName"] == claim["metadata"]["name"]
