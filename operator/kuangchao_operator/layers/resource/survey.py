"""One look at this machine: drivers asked, health judged. Shared by the node agent and the local runner."""

from kuangchao_contracts.api.resourcepool import HealthThresholds
from kuangchao_contracts.descriptor import HostCapacity
from kuangchao_operator.layers.resource.cpu_driver import CpuDriver
from kuangchao_operator.layers.resource.driver import DeviceDriver, FirstPresentDriver
from kuangchao_operator.layers.resource.health import judge
from kuangchao_operator.layers.resource.model import Found
from kuangchao_operator.layers.resource.nvml_driver import NvmlDriver


def default_driver() -> DeviceDriver:
    """GPUs where there are any, else the CPUs."""
    return FirstPresentDriver(NvmlDriver(), CpuDriver())


def survey(node: str, driver: DeviceDriver, host: HostCapacity, limits: HealthThresholds) -> Found:
    """What the node has now. Blocking."""
    reading = driver.discover()
    return Found(
        node=node,
        host=host,
        devices=tuple(judge(device, limits) for device in reading.devices),
        links=reading.links,
        driver=reading.driver,
    )
