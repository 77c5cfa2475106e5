"""Strategy stays pure: nothing in its import graph can reach a clock, chance, the network or a framework."""

import grimp
import pytest

PACKAGE = "kuangchao_operator.layers.strategy"
IMPURE = {"service", "shipped", "footprint.shipped", "timing.shipped"}
"""The port's side, and the readers of shipped figures."""
FORBIDDEN = {
    "torch",
    "kubernetes",
    "kopf",
    "time",
    "random",
    "os",
    "asyncio",
    "socket",
    "threading",
    "subprocess",
    "secrets",
    "jwt",
    "structlog",
    "prometheus_client",
    "pathlib",
    "importlib",
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(
        "kuangchao_operator", "kuangchao_contracts", include_external_packages=True, cache_dir=None
    )


def test_the_import_graph_of_every_pure_module_is_clean(graph: grimp.ImportGraph) -> None:
    modules = graph.find_descendants(PACKAGE) - {f"{PACKAGE}.{name}" for name in IMPURE}
    reached = {module: FORBIDDEN & graph.find_upstream_modules(module) for module in modules}
    assert {module: found for module, found in reached.items() if found} == {}
    assert {f"{PACKAGE}.decide", f"{PACKAGE}.footprint.phases", f"{PACKAGE}.describe.huggingface"} <= modules


def test_no_pure_module_reads_the_shipped_calibration(graph: grimp.ImportGraph) -> None:
    readers = {
        name for name in graph.find_downstream_modules(f"{PACKAGE}.footprint.shipped") if name.startswith(PACKAGE)
    }
    assert readers == {f"{PACKAGE}.shipped", f"{PACKAGE}.service"}


def test_the_service_reaches_no_cluster_and_no_framework(graph: grimp.ImportGraph) -> None:
    reached = graph.find_upstream_modules(f"{PACKAGE}.service")
    assert not {"torch", "kubernetes", "kopf", "aiohttp"} & reached
