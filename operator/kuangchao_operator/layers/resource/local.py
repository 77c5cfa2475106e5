"""This machine as a node, for the local runner and the CLI: no cluster needed."""

from collections.abc import Callable
from datetime import UTC, datetime

from kuangchao_contracts.api.resourcepool import HealthThresholds
from kuangchao_contracts.descriptor import NodeDescriptor
from kuangchao_operator.layers.resource.cpu_driver import CpuDriver
from kuangchao_operator.layers.resource.driver import DeviceDriver
from kuangchao_operator.layers.resource.survey import default_driver, survey


def _utc_now() -> datetime:
    return datetime.now(UTC)


def describe_host(
    node: str = "local",
    driver: DeviceDriver | None = None,
    cpu: CpuDriver | None = None,
    now: Callable[[], datetime] = _utc_now,
) -> NodeDescriptor:
    """The first descriptor of this machine: what this process may use of it, other processes not counted."""
    host = (cpu or CpuDriver()).host()
    found = survey(node, driver or default_driver(), host, HealthThresholds())
    return NodeDescriptor(
        node=node,
        generation=1,
        observed_at=now(),
        host=found.host,
        devices=found.devices,
        links=found.links,
        driver=found.driver,
    )
