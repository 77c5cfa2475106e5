"""Strategy stays pure: nothing in its import graph can reach a clock, chance, the network or a framework."""

import grimp
import pytest

PACKAGE = "kuangchao_operator.layers.strategy"
PURE = ("constants", "decide", "explain", "laws", "memory", "requests")
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
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(
        "kuangchao_operator", "kuangchao_contracts", include_external_packages=True, cache_dir=None
    )


@pytest.mark.parametrize("module", PURE)
def test_the_import_graph_of_a_pure_module_is_clean(graph: grimp.ImportGraph, module: str) -> None:
    reached = graph.find_upstream_modules(f"{PACKAGE}.{module}")
    assert not FORBIDDEN & reached


def test_every_module_but_the_service_is_held_to_it(graph: grimp.ImportGraph) -> None:
    modules = {name.removeprefix(f"{PACKAGE}.") for name in graph.find_children(PACKAGE)}
    assert modules == {*PURE, "service"}


def test_the_service_reaches_no_cluster_and_no_framework(graph: grimp.ImportGraph) -> None:
    reached = graph.find_upstream_modules(f"{PACKAGE}.service")
    assert not {"torch", "kubernetes", "kopf", "aiohttp"} & reached
