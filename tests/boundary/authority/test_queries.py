"""Row 68: the record answers questions and nothing else, and a tenant's token sees a tenant's records only."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditPage
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_operator.layers.governance.service import GovernanceService
from tests.boundary.authority.holders import HOLDERS, holder_for
from tests.boundary.authority.world import World, resource_of, running

QUERY = OPERATIONS["governance.query"]
CLUSTER_HOLDER = holder_for(QUERY, "layer:governance")
TENANT = replace(HOLDERS["layer:interface"], namespace="team-a")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Its store holds refusals of two tenants."""
    with running(tmp_path_factory.mktemp("queries")) as world:
        for namespace in ("team-a", "team-a2", "team-b"):
            world.call(OPERATIONS["execution.join"], None, f"{namespace}/jobs/digits")
        world.control = Gate("operator", world.verifier, world.fence, world.sink, world.clock.moment, world.policies)
        world.control.register(GovernanceService(world.directory / "audit", lambda: 0))
        yield world


def ask(world: World, tenant: bool, op: str = "governance.query", **filters: Any) -> Any:
    """As a call from the network: the body is parsed by the gate."""
    spec, holder = OPERATIONS[op], TENANT if tenant else CLUSTER_HOLDER
    token, resource = world.token(spec, holder), resource_of(spec, holder)
    try:
        return world.run(world.control.call_wire(token, op, resource, filters, "opid"))
    except e.KuangchaoError as error:
        return error


def seen(page: Any) -> set[str]:
    assert isinstance(page, AuditPage), page
    return {item.record.resource.split("/")[0] for item in page.records} - {"_cluster"}


DENIED: dict[str, tuple[bool, dict[str, Any], type[e.KuangchaoError]]] = {
    "a thousand million records": (False, {"limit": 10**9}, e.InvalidInputError),
    "no records": (False, {"limit": 0}, e.InvalidInputError),
    "an unknown filter": (False, {"where": "1=1"}, e.InvalidInputError),
    "400 days": (False, {"since": "2026-01-01T00:00:00Z", "until": "2027-02-05T00:00:00Z"}, e.InvalidInputError),
    "the end before the beginning": (
        False, {"since": "2027-01-02T00:00:00Z", "until": "2027-01-01T00:00:00Z"}, e.InvalidInputError,
    ),
    "a page larger than a tenant's": (True, {"limit": 10_000}, e.InvalidInputError),
    "another tenant": (True, {"resource": "team-b/jobs/digits"}, e.CrossTenantError),
    "a tenant with a longer name": (True, {"resource": "team-a2"}, e.CrossTenantError),
    "the cluster": (True, {"resource": "_cluster/audit/records"}, e.CrossTenantError),
    "every tenant by pattern": (True, {"resource": "%"}, e.CrossTenantError),
    "no tenant": (True, {"resource": ""}, e.CrossTenantError),
}  # fmt: skip


@pytest.mark.parametrize(("tenant", "filters", "expected"), DENIED.values(), ids=DENIED)
def test_refused(world: World, tenant: bool, filters: dict[str, Any], expected: type[e.KuangchaoError]) -> None:
    assert type(ask(world, tenant, **filters)) is expected


@pytest.mark.parametrize("op", ["governance.verify", "governance.prove"])
def test_the_record_of_the_cluster_is_not_proved_to_a_tenant(world: World, op: str) -> None:
    outcome = ask(world, True, op, **({"seq": 1} if op.endswith("prove") else {}))
    assert isinstance(outcome, e.DeniedError)


@pytest.mark.parametrize("text", ["'; DROP TABLE records; --", "' OR '1'='1", '" OR 1=1 --', "%", "_", "*", "\\"])
@pytest.mark.parametrize("column", ["subject", "operation", "job", "resource"])
def test_filters_are_values(world: World, column: str, text: str) -> None:
    assert seen(ask(world, False, **{column: text})) == set()
    assert seen(ask(world, False)) == {"team-a", "team-a2", "team-b"}


def test_a_tenant_sees_its_own(world: World) -> None:
    assert seen(ask(world, True)) == {"team-a"}
    assert seen(ask(world, True, resource="team-a/jobs/digits")) == {"team-a"}
