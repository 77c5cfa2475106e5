"""The wheel holds all of the three packages, and each process can do without what it must not have."""

import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tests.boundary.modules import ROOT, ROOTS, load, modules
from tests.wheel import build_wheel, unpack

CONTROL_PLANE = {"duckdb", "kopf", "kubernetes", "prometheus_client", "structlog", "pydantic_settings"}
LEARNING = {"torch", "torchdata", "numpy", "sklearn"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout with what is installed."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the checkout that holds the wheel's content."""
    return unpack(wheel, tmp_path_factory.mktemp("installed"))


def test_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(ROOT / folder))
        for package, folder in ROOTS.items()
        for path in (ROOT / folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped == expected


@pytest.mark.parametrize("package", ROOTS)
def test_every_module_of_the_wheel_can_be_imported(installed: Path, package: str) -> None:
    loaded = load(modules(package), set(), [installed])
    elsewhere = {
        n: f for n, f in loaded.items() if n.startswith("kuangchao") and f and not f.startswith(str(installed))
    }
    assert elsewhere == {}, "these came from somewhere else than the wheel"


def test_entry_points_exist(installed: Path) -> None:
    text = next(installed.glob("*.dist-info/entry_points.txt")).read_text()
    points = dict(line.split(" = ") for line in text.splitlines() if " = " in line)
    assert points.keys() == {"kuangchao", "kubectl-kuangchao"}
    for name, value in points.items():
        target = EntryPoint(name, value, "console_scripts")
        assert target.module in load([target.module], set(), [installed])


def test_contracts_need_almost_nothing() -> None:
    blocked = CONTROL_PLANE | LEARNING | {"aiohttp", "typer", "rich", "yaml", "kuangchao_operator", "kuangchao_worker"}
    load(modules("kuangchao_contracts"), blocked)


def test_worker_runs_without_the_control_plane() -> None:
    """What the worker image holds: contracts and worker, and no way to sign or to speak to the API server."""
    load(modules("kuangchao_worker"), CONTROL_PLANE | {"kuangchao_operator", "typer"})


def test_operator_runs_without_torch_and_without_the_worker() -> None:
    load(modules("kuangchao_operator"), LEARNING | {"kuangchao_worker"})


def test_cli_and_local_runner_start_without_the_control_plane() -> None:
    """`pip install kuangchao[worker]` is enough for `kuangchao run` and `kuangchao plan`."""
    shared = ("cli.main", "local", "shell", "layers.strategy", "layers.execution", "layers.state", "signing", "gate")
    names = [
        name
        for name in modules("kuangchao_operator")
        if name.startswith(tuple(f"kuangchao_operator.{part}" for part in shared))
    ]
    loaded = load(names, CONTROL_PLANE | LEARNING | {"kuangchao_worker"})
    assert "kuangchao_operator.cli.main" in loaded


def test_help_loads_nothing_heavy() -> None:
    loaded = load(["kuangchao_operator.cli.main"], set())
    assert not (CONTROL_PLANE | LEARNING) & loaded.keys()
