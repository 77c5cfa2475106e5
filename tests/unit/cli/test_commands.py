"""The command line as a whole: exit codes, stdout for results, stderr for errors, stable JSON, fast help."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from kuangchao_operator.cli.main import app
from tests.unit.cli.manifests import changed

PLAN_KEYS = {
    *("feasible", "tensor", "pipeline", "data", "context", "expert", "sequence", "virtualStages", "microBatch"),
    *("recompute", "sharding", "memory", "stepSeconds", "bubbleFraction", "alternatives", "rejected"),
}
STAGE_KEYS = {
    *("parametersBytes", "gradientsBytes", "optimizerBytes", "activationsBytes", "otherBytes"),
    *("totalBytes", "reservedBytes"),
}
COMMANDS = ["run", "plan", "get", "describe", "logs", "why", "suspend", "resume", "delete", "doctor"]
LOADED = """
import sys, kuangchao_operator.cli.main
print([m for m in ('pydantic', 'kubernetes', 'yaml', 'torch', 'aiohttp') if m in sys.modules])
"""


def descriptor(node: str = "n1", milli_cpu: int = 4_000, memory: int = 2**34, gpus: int = 0) -> dict:
    devices = [{"index": 0, "uuid": "cpu-0", "kind": "cpu", "model": "cpu"}]
    devices += [
        {"index": n + 1, "uuid": f"GPU-{n}", "kind": "gpu", "model": "H100", "memoryBytes": 80 * 2**30}
        for n in range(gpus)
    ]
    host = {"allocatableMilliCpu": milli_cpu, "allocatableMemoryBytes": memory}
    spec = {
        "node": node,
        "generation": 1,
        "observedAt": datetime.now(UTC).isoformat(),
        "host": host,
        "devices": devices,
    }
    return {
        "apiVersion": "kuangchao.io/v1alpha1",
        "kind": "ResourceDescriptor",
        "metadata": {"name": node},
        "spec": spec,
    }


def pool(name: str = "cpu", **spec: object) -> dict:
    return {"apiVersion": "kuangchao.io/v1alpha1", "kind": "ResourcePool", "metadata": {"name": name}, "spec": spec}


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write(tmp_path / "job.yaml", changed("spec.pool", "cpu"))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def resources(path: Path, *objects: dict) -> str:
    return str(write(path / "resources.yaml", yaml.safe_dump_all(objects)))


SUBCOMMANDS = ["audit query", "audit anomalies", "policy check"]
TOKEN_COMMANDS = ["token verify", "token revoke", "token restore", "token revocations"]


@pytest.mark.parametrize("command", [*COMMANDS, *SUBCOMMANDS, *TOKEN_COMMANDS])
def test_every_command_has_help_and_json(command: str) -> None:
    found = call(*command.split(), "--help")
    assert found.exit_code == 0
    assert "--output" in found.stdout
    assert "JSON: " in found.stdout


def test_help_imports_neither_models_nor_the_cluster_client() -> None:
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["plan"], ["plan", "x", "--nothing"], ["get", "-o", "xml"], ["logs"]]
)
def test_bad_usage_is_bad_input(arguments: list[str]) -> None:
    found = call(*arguments)
    assert found.exit_code == 2
    assert found.stdout == ""
    assert found.stderr


def test_plan_on_this_machine(job: Path) -> None:
    found = call("plan", str(job))
    assert found.exit_code == 0, found.stderr
    assert "dp2" in found.stdout
    assert "26,122" in found.stdout


def test_plan_json_has_the_documented_keys(job: Path, tmp_path: Path) -> None:
    found = call("plan", str(job), "-o", "json", "--resources", resources(tmp_path, descriptor(), pool()))
    plan = json.loads(found.stdout)
    assert plan.keys() >= PLAN_KEYS
    assert plan["memory"]["stages"][0].keys() >= STAGE_KEYS
    assert (plan["feasible"], plan["data"], plan["microBatch"]) == (True, 2, 32)


def test_plan_is_the_same_bytes_each_time(job: Path, tmp_path: Path) -> None:
    arguments = ("plan", str(job), "-o", "json", "--resources", resources(tmp_path, descriptor(), pool()))
    assert call(*arguments).stdout == call(*arguments).stdout


def test_infeasible_plan_exits_3_with_the_arithmetic(tmp_path: Path) -> None:
    job = write(tmp_path / "job.yaml", changed("spec.model.parameters", 7_000_000_000))
    found = call("plan", str(job), "--resources", resources(tmp_path, descriptor(), pool()))
    assert found.exit_code == 3
    assert "Infeasible" in found.stdout
    assert "7,000,000,000" in found.stdout
    as_json = json.loads(
        call("plan", str(job), "-o", "json", "--resources", resources(tmp_path, descriptor(), pool())).stdout
    )
    assert as_json["feasible"] is False
    assert as_json["reason"] == "Infeasible"


def test_contradictory_pins_name_field_value_and_nearest(tmp_path: Path) -> None:
    job = write(tmp_path / "job.yaml", changed("spec.parallelism", {"data": 3}))
    found = call("plan", str(job), "-o", "json", "--resources", resources(tmp_path, descriptor(), pool()))
    assert found.exit_code == 3
    plan = json.loads(found.stdout)
    assert plan["reason"] == "ContradictoryPlan"
    assert "data" in plan["field"]
    assert plan["value"] == "3"
    assert plan["nearest"] is not None


def test_gpus_of_a_described_cluster(tmp_path: Path) -> None:
    job = write(tmp_path / "job.yaml", changed("spec.pool", "h100"))
    found = call("plan", str(job), "-o", "json", "--resources",
                 resources(tmp_path, descriptor(gpus=8), pool("h100", deviceType="gpu")))  # fmt: skip
    assert json.loads(found.stdout)["memory"]["deviceBytes"] == 80 * 2**30


def test_resources_as_kubectl_lists_them(job: Path, tmp_path: Path) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [descriptor(), pool()]}
    path = write(tmp_path / "list.json", json.dumps(listed, indent=2))
    assert call("plan", str(job), "--resources", str(path)).exit_code == 0
    listed["items"][0]["spec"]["hots"] = {}
    write(path, json.dumps(listed, indent=2))
    found = call("plan", str(job), "--resources", str(path))
    assert found.exit_code == 2
    assert "nearest legal value: host" in found.stderr


def test_unknown_pool_suggests_the_nearest(tmp_path: Path) -> None:
    job = write(tmp_path / "job.yaml", changed("spec.pool", "cpus"))
    found = call("plan", str(job), "--resources", resources(tmp_path, descriptor(), pool("gpu"), pool("cpu")))
    assert found.exit_code == 2
    assert "spec.pool='cpus'" in found.stderr
    assert "nearest legal value: cpu" in found.stderr


def test_resources_without_a_node(job: Path, tmp_path: Path) -> None:
    found = call("plan", str(job), "--resources", resources(tmp_path, pool()))
    assert found.exit_code == 2
    assert "--resources" in found.stderr


def test_errors_as_json_go_to_stderr(tmp_path: Path) -> None:
    job = write(tmp_path / "job.yaml", changed("spec.devices.count", 0))
    found = call("plan", str(job), "-o", "json")
    assert found.exit_code == 2
    assert found.stdout == ""
    error = json.loads(found.stderr)["error"]
    assert (error["code"], error["value"], error["nearest"]) == ("InvalidInput", 0, 1)
    assert error["field"].endswith("spec.devices.count")


def test_job_from_standard_input() -> None:
    found = CliRunner().invoke(app, ["plan", "-"], input=changed("spec.devices.count", -3))
    assert found.exit_code == 2
    assert "stdin:" in found.stderr


def test_without_a_cluster_commands_say_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    found = call("get")
    assert found.exit_code == 1
    assert "KUBECONFIG" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["get", "--watch"], "needs the name of a job"),
        (["get", "x", "-A"], "cannot stand beside"),
        (["logs", "x", "-f", "-o", "json"], "no end"),
        (["audit", "query", "--since", "yesterday"], "--since"),
        (["audit", "query", "--since", "1h", "--until", "2h"], "is not before"),
        (["audit", "query", "--limit", "0"], "--limit"),
    ],
)
def test_contradictory_options(arguments: list[str], words: str) -> None:
    found = call(*arguments)
    assert found.exit_code == 2
    assert words in found.stderr


def test_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    job = write(tmp_path / "job.yaml", changed("spec.training.seed", 3))
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "kuangchao_operator.cli.main", "plan", str(job)]
        own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ, **own})
    assert done.returncode != 0
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_looks_at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = {c["name"]: c for c in json.loads(call("doctor", "--local", "-o", "json").stdout)["checks"]}
    assert checks.keys() >= {"python", "packages[worker]", "cores", "disk", "shared memory"}
    assert checks["python"]["verdict"] == "ok"


def test_doctor_names_the_command_that_mends(monkeypatch: pytest.MonkeyPatch) -> None:
    from kuangchao_operator.cli import machine_checks

    monkeypatch.setitem(machine_checks.PACKAGES, "worker", ("torch", "no-such-package"))
    monkeypatch.setattr(machine_checks, "MIN_DISK_BYTES", 2**62)
    found = call("doctor", "--local")
    assert found.exit_code == 1
    assert "no-such-package not installed" in found.stdout
    assert "pip install 'kuangchao[worker]'" in found.stdout
    assert "missing  disk" in found.stdout


def test_doctor_skips_an_absent_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    checks = json.loads(call("doctor", "-o", "json").stdout)["checks"]
    assert checks[-1]["name"] == "cluster"
    assert checks[-1]["verdict"] == "skip"
    assert "KUBECONFIG" in checks[-1]["mend"]


def test_doctor_does_without_the_kubernetes_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kuangchao_operator.cli.cluster", raising=False)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    checks = json.loads(call("doctor", "-o", "json").stdout)["checks"]
    assert checks[-1]["verdict"] == "skip"
    assert checks[-1]["mend"] == "pip install 'kuangchao[cli]'"


def test_every_command_is_told_in_one_line() -> None:
    listed = call("--help").stdout.partition("Commands:")[2]
    assert "..." not in listed


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kuangchao_operator.cli.cluster", raising=False)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    found = call("get")
    assert found.exit_code == 1
    assert "pip install 'kuangchao[cli]'" in found.stderr


def test_a_plan_for_another_number_of_devices(job: Path) -> None:
    found = call("plan", str(job), "--devices", "4", "-o", "json")
    assert json.loads(found.stdout)["worldSize"] == 4, found.stderr


@pytest.mark.parametrize("command", ["run", "plan"])
def test_another_number_of_devices_must_fit_the_pods(tmp_path: Path, command: str) -> None:
    job = write(tmp_path / "job.yaml", changed("spec.devices", {"count": 4, "perPod": 2}))
    found = call(command, str(job), "--devices", "3")
    assert found.exit_code == 2
    assert "--devices=3" in found.stderr
    assert "nearest legal value: 4" in found.stderr
