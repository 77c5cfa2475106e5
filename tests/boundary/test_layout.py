"""Rules of the tree: what a newcomer guesses is where it is, and generated files are what the generators write."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kuangchao_contracts
from kuangchao_contracts.layers import NUMBERED
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.api.crdgen import MAX_BYTES, differing, files
from tests.boundary.modules import ROOT, ROOTS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = [path for package, folder in ROOTS.items() for path in sorted((ROOT / folder / package).rglob("*.py"))]
MAX_LINES = 500


def _layers(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("*/__init__.py")}


def test_component_folders_are_no_packages() -> None:
    """An `operator` package would shadow the standard library's module of that name."""
    for folder in ROOTS.values():
        assert not (ROOT / folder / "__init__.py").exists(), folder
    command = [sys.executable, "-c", "import operator; operator.eq"]
    subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=True, timeout=30)


def test_layer_folders_are_the_layers() -> None:
    operator = _layers(ROOT / "operator" / "kuangchao_operator" / "layers")
    worker = _layers(ROOT / "worker" / "kuangchao_worker" / "layers")
    known = {layer.value for layer in NUMBERED}
    assert operator | worker == known
    assert worker == {"topology", "execution", "state"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_says_its_place_and_stays_short(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "module docstring: place in the system, what it must never do"
    assert len(text.splitlines()) <= MAX_LINES


def test_version_is_one() -> None:
    chart = yaml.safe_load((ROOT / "charts" / "kuangchao" / "Chart.yaml").read_text())
    assert {PROJECT["version"], kuangchao_contracts.__version__, chart["version"], chart["appVersion"]} == {
        PROJECT["version"]
    }


@pytest.mark.parametrize(("folder", "chart"), [("crds", False), ("charts/kuangchao/templates/crds", True)])
def test_generated_crds_are_committed(folder: str, chart: bool) -> None:
    assert differing(ROOT / folder, files(chart=chart)) == [], "run: make crds chart"


def test_crds_are_small() -> None:
    assert {name: size for name, text in files().items() if (size := len(text.encode())) > MAX_BYTES} == {}


def test_drift_is_noticed(tmp_path: Path) -> None:
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    stale, *others = sorted(files())
    (tmp_path / stale).write_text("changed by hand\n")
    (tmp_path / others[0]).unlink()
    (tmp_path / "kuangchao.io_strangers.yaml").write_text("of no kind\n")
    assert differing(tmp_path, files()) == sorted([stale, others[0], "kuangchao.io_strangers.yaml"])


def test_every_reason_has_a_heading() -> None:
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs" / "reasons.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(reason.value for reason in Reason)


def _declared() -> set[str]:
    extras = PROJECT["optional-dependencies"].values()
    return {canonicalize_name(Requirement(line).name) for group in (PROJECT["dependencies"], *extras) for line in group}


def test_every_dependency_has_its_reason() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text()
    explained = re.findall(r"^\| `([\w.-]+)`", text, re.MULTILINE)
    assert sorted(explained) == sorted(_declared())


LOCKS = {
    "base": (),
    "operator": ("operator", "nvml"),
    "worker": ("worker",),
    "dev": ("operator", "worker", "nvml", "dev"),
    "fuzz": ("fuzz",),
    "integrations": ("worker", "integrations", "dev"),
}


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_satisfies_the_project_by_hash(lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    pins = dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", text, re.MULTILINE))
    wanted = [
        *PROJECT["dependencies"],
        *(line for extra in LOCKS[lock] for line in PROJECT["optional-dependencies"][extra]),
    ]
    for line in wanted:
        requirement = Requirement(line)
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), line
    assert "://" not in text, "a lock names no index"
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(entries) == len(pins)
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize(("image", "never"), [("worker", "operator/"), ("operator", "worker/")])
def test_images_hold_only_what_they_run(image: str, never: str) -> None:
    lines = (ROOT / f"Dockerfile.{image}").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert copied
    assert not [word for word in copied if word.startswith(never) or word in (".", "./")]
    assert "USER 65532:65532" in lines
    assert not [line for line in lines if line.startswith("FROM") and ":latest" in line]
