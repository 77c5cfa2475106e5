"""The node agent's loop over a cluster in memory: generations, collection, faults, resumption."""

import asyncio

import pytest
from tests.unit.resource.test_decide import NOW

from kuangchao_contracts.api.resourcepool import HealthThresholds
from kuangchao_contracts.descriptor import DeviceKind, HostCapacity, NodeDescriptor
from kuangchao_contracts.errors import ConflictError, UnavailableError
from kuangchao_operator.layers.resource.agent.cluster import Cluster
from kuangchao_operator.layers.resource.agent.loop import RESUME_CHECKS, NodeAgent
from kuangchao_operator.layers.resource.debounce import RECOVERY_CHECKS
from kuangchao_operator.layers.resource.driver import DeviceDriver
from kuangchao_operator.layers.resource.model import DeviceReading, DriverReading


class Memory(Cluster):
    """A cluster in memory. `history` is what was done to objects, in order."""

    def __init__(self) -> None:
        self.capacity = HostCapacity(allocatable_milli_cpu=4000, allocatable_memory_bytes=2**30)
        self.thresholds = HealthThresholds()
        self.objects: dict[int, NodeDescriptor] = {}
        self.history: list[str] = []
        self.down = False
        self.looks = 0
        self.asked = asyncio.Event()

    async def host(self, node: str) -> tuple[HostCapacity, dict[str, str]]:
        self.looks += 1
        self.asked.set()
        self._up()
        return self.capacity, {"zone": "a"}

    async def limits(self, labels: dict[str, str]) -> HealthThresholds:
        assert labels == {"zone": "a"}
        return self.thresholds

    async def descriptors(self, node: str) -> tuple[NodeDescriptor, ...]:
        self._up()
        return tuple(self.objects.values())

    async def publish(self, descriptor: NodeDescriptor) -> None:
        self._up()
        if descriptor.generation in self.objects:
            raise ConflictError("exists")
        self.objects[descriptor.generation] = descriptor
        self.history.append(f"+{descriptor.generation}")

    async def collect(self, node: str, generation: int) -> None:
        self.objects.pop(generation, None)
        self.history.append(f"-{generation}")

    def _up(self) -> None:
        if self.down:
            raise UnavailableError("down")


class OneGpu(DeviceDriver):
    fault: str | None = None
    temperature = 40

    def discover(self) -> DriverReading:
        return DriverReading(
            devices=(
                DeviceReading(
                    index=0,
                    uuid="GPU-0",
                    kind=DeviceKind.GPU,
                    model="H100",
                    fault=self.fault,
                    temperature_celsius=self.temperature,
                ),
            )
        )


def agent(cluster: Memory, driver: DeviceDriver | None = None) -> NodeAgent:
    return NodeAgent("n", driver or OneGpu(), cluster, lambda: NOW)


async def test_nothing_is_written_while_nothing_changes() -> None:
    cluster = Memory()
    one = agent(cluster)
    for _ in range(3 * RESUME_CHECKS):
        await one.check()
    assert cluster.history == ["+1"]


async def test_a_change_is_a_new_object_before_the_old_one_goes() -> None:
    cluster, gpu = Memory(), OneGpu()
    one = agent(cluster, gpu)
    first = await one.check()
    gpu.fault = "GPU is lost"
    second = await one.check()
    assert cluster.history == ["+1", "+2", "-1"]
    assert first is not None
    assert first.devices[0].healthy
    assert second is not None
    assert second.devices[0].reason == "GPU is lost"


async def test_a_passing_change_of_other_pods_is_not_published() -> None:
    cluster = Memory()
    one = agent(cluster)
    await one.check()
    for cpu in (100, 0, 200, 0, 300):
        cluster.capacity = cluster.capacity.replace(others_milli_cpu=cpu)
        await one.check()
    await one.check()
    assert cluster.history == ["+1", "+2", "-1"]
    assert cluster.objects[2].host.others_milli_cpu == 300


async def test_limits_of_pools_are_obeyed() -> None:
    cluster, gpu = Memory(), OneGpu()
    one = agent(cluster, gpu)
    await one.check()
    gpu.temperature = 70
    cluster.thresholds = HealthThresholds(max_temperature_celsius=60)
    published = await one.check()
    assert published is not None
    assert published.devices[0].reason == "temperature above 60 C"


async def test_a_restarted_agent_goes_on_counting_and_cleans_up() -> None:
    cluster = Memory()
    await agent(cluster).check()
    cluster.objects[7] = cluster.objects[1].replace(generation=7)
    cluster.history.clear()
    gpu = OneGpu()
    one = agent(cluster, gpu)
    await one.check()
    assert cluster.history == ["-1"]
    gpu.fault = "lost"
    await one.check()
    assert cluster.history == ["-1", "+8", "-7"]


async def test_restarts_of_the_agent_do_not_heal_a_device() -> None:
    cluster, gpu = Memory(), OneGpu()
    gpu.fault = "lost"
    await agent(cluster, gpu).check()
    gpu.fault = None
    for _ in range(3 * RECOVERY_CHECKS):
        assert await agent(cluster, gpu).check() is None
    one = agent(cluster, gpu)
    answers = [await one.check() for _ in range(RECOVERY_CHECKS)]
    assert answers[:-1] == [None] * (RECOVERY_CHECKS - 1)
    assert answers[-1] is not None
    assert answers[-1].devices[0].healthy


async def test_a_descriptor_that_somebody_deleted_comes_back() -> None:
    cluster = Memory()
    one = agent(cluster)
    await one.check()
    cluster.objects.clear()
    for _ in range(RESUME_CHECKS):
        await one.check()
    assert list(cluster.objects) == [1]


async def test_a_generation_that_another_agent_took_is_followed() -> None:
    cluster, gpu = Memory(), OneGpu()
    one = agent(cluster, gpu)
    await one.check()
    cluster.objects[2] = cluster.objects[1].replace(generation=2)
    gpu.fault = "lost"
    before = cluster.looks
    stop = asyncio.Event()
    running = asyncio.create_task(one.run(stop, interval=0.001))
    async with asyncio.timeout(100):
        while 3 not in cluster.objects:
            cluster.asked.clear()
            await cluster.asked.wait()
        stop.set()
        await running
    assert not cluster.objects[3].devices[0].healthy
    assert cluster.looks - before <= 4, "it reads what is published again as soon as it fails, not some checks later"


async def test_the_loop_outlives_the_api_server_and_stops_when_told() -> None:
    cluster = Memory()
    cluster.down = True
    stop = asyncio.Event()
    running = asyncio.create_task(agent(cluster).run(stop, interval=0.001))
    await asyncio.sleep(0)
    cluster.down = False
    async with asyncio.timeout(100):
        while not cluster.objects:
            cluster.asked.clear()
            await cluster.asked.wait()
            await asyncio.sleep(0)
        stop.set()
        await running
    assert list(cluster.objects) == [1]


async def test_a_driver_that_hangs_does_not_hang_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Hanging(DeviceDriver):
        def discover(self) -> DriverReading:
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(30)
            return DriverReading(devices=())

    monkeypatch.setattr("kuangchao_operator.layers.resource.agent.loop.DISCOVERY_SECONDS", 0.01)
    with pytest.raises(TimeoutError):
        await agent(Memory(), Hanging()).check()
    release.set()
