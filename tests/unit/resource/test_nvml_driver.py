"""The NVML driver against a fake of the vendor's library: a healthy node, a lost card, ECC errors, unknown answers."""

from datetime import UTC, datetime

import pytest
from tests.unit.resource.fake_nvml import FakeNvml, NVMLError, load

from kuangchao_contracts.api.resourcepool import HealthThresholds, ResourcePoolSpec
from kuangchao_contracts.descriptor import DeviceKind, DeviceLink, HostCapacity
from kuangchao_operator.layers.resource.decide import slots, successor
from kuangchao_operator.layers.resource.driver import DeviceDriver, DriverAbsentError, FirstPresentDriver
from kuangchao_operator.layers.resource.model import DeviceReading, DriverReading, Found
from kuangchao_operator.layers.resource.nvml_driver import NvmlDriver
from kuangchao_operator.layers.resource.survey import survey

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LIMITS = HealthThresholds()
HOST = HostCapacity(allocatable_milli_cpu=1000, allocatable_memory_bytes=2**30)


def driver(name: str) -> tuple[NvmlDriver, FakeNvml]:
    nvml = FakeNvml(load(name))
    return NvmlDriver(lambda: nvml), nvml


def found(name: str, limits: HealthThresholds = LIMITS) -> Found:
    return survey("n", driver(name)[0], HOST, limits)


def test_a_healthy_node_of_eight() -> None:
    reading = driver("h100x8.json")[0].discover()
    assert reading.driver == "nvidia 550.54.15"
    assert len(reading.devices) == 8
    assert reading.devices[1] == DeviceReading(
        index=1,
        uuid="GPU-00000001-0000-4000-8000-000000000001",
        kind=DeviceKind.GPU,
        model="NVIDIA H100 80GB HBM3",
        memory_bytes=81559 * 2**20,
        compute_capability="9.0",
        pci_bus_id="00000000:2A:00.0",
        numa_node=0,
        temperature_celsius=31,
        uncorrectable_ecc=0,
        remap_pending=False,
        remap_failed=False,
        partitioned=False,
    )
    assert [device.numa_node for device in reading.devices] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert all(device.healthy for device in found("h100x8.json").devices)


def test_all_pairs_behind_nvswitch_have_eighteen_links() -> None:
    links = driver("h100x8.json")[0].discover().links
    assert len(links) == 28
    assert {link.kind for link in links} == {"NV18"}


def test_a_degraded_fabric_shows_in_the_pairs_of_that_card() -> None:
    gpus, nvml = driver("h100x8.json")
    nvml.node["devices"][3]["nvlinks"]["active"] = 12
    links = gpus.discover().links
    assert {link.kind for link in links if 3 in (link.first, link.second)} == {"NV12"}
    assert {link.kind for link in links if 3 not in (link.first, link.second)} == {"NV18"}


def test_direct_links_go_to_the_card_at_their_other_end_only() -> None:
    gpus, nvml = driver("h100x8.json")
    for device in nvml.node["devices"]:
        device["nvlinks"] = {"active": 0, "remote": "switch"}
    first, second = nvml.node["devices"][:2]
    first["nvlinks"] = {"active": 4, "remote": second["busId"]}
    second["nvlinks"] = {"active": 4, "remote": first["busId"]}
    links = gpus.discover().links
    assert links[0] == DeviceLink(first=0, second=1, kind="NV4")
    assert {(link.first, link.kind) for link in links if link.second == 4} == {(n, "SYS") for n in range(4)}
    assert links[1] == DeviceLink(first=0, second=2, kind="NODE")


def test_a_lost_card_is_unhealthy_and_the_others_go_on() -> None:
    devices = found("h100x8-lost.json").devices
    assert len(devices) == 8
    assert [d.index for d in devices if not d.healthy] == [5]
    assert devices[5].reason == "GPU is lost"
    assert devices[5].uuid == "unidentified-5"


@pytest.mark.parametrize("question", ["handle", "uuid", "memoryTotal", "temperature", "remappedRows"])
@pytest.mark.parametrize("error", [15, 16])
def test_a_card_that_is_lost_in_use_keeps_its_identity(question: str, error: int) -> None:
    gpus, nvml = driver("h100x8.json")
    before = gpus.discover().devices[5]
    nvml.node["devices"][5][question] = {"error": error}
    after = gpus.discover()
    assert after.devices[5] == before.replace(fault=NVMLError.TEXTS[error])
    assert len(after.devices) == 8
    assert not [link for link in after.links if 5 in (link.first, link.second)]
    assert len(after.links) == 21


def test_ecc_errors_and_failed_remapping_take_cards_out() -> None:
    devices = found("h100x8-ecc.json").devices
    assert {d.index: d.reason for d in devices if not d.healthy} == {
        2: "uncorrectable ECC errors above 0 since the driver was loaded",
        6: "row remapping failed: the device must be replaced",
    }
    tolerant = found("h100x8-ecc.json", HealthThresholds(max_uncorrectable_ecc=5)).devices
    assert tolerant[2].reason == "row remapping pending: the device needs a reset"


def test_what_a_card_does_not_know_is_unknown_and_no_fault() -> None:
    reading = driver("rtx4090x2-vm.json")[0].discover()
    first = reading.devices[0]
    assert (first.uncorrectable_ecc, first.remap_pending, first.remap_failed) == (None, None, None)
    assert (first.partitioned, first.numa_node) == (None, None)
    assert all(device.healthy for device in found("rtx4090x2-vm.json").devices)
    assert reading.links == (DeviceLink(first=0, second=1, kind="PHB"),)


def test_a_card_split_into_instances_is_not_a_whole_device() -> None:
    gpus, nvml = driver("h100x8.json")
    nvml.node["devices"][0]["migMode"] = [1, 1]
    device = survey("n", gpus, HOST, HealthThresholds()).devices[0]
    assert device.reason == "split into MIG instances: not a whole device"


def test_several_memory_nodes_are_no_single_one() -> None:
    gpus, nvml = driver("h100x8.json")
    nvml.node["devices"][0]["memoryAffinity"] = [3] + [0] * 15
    nvml.node["devices"][1]["memoryAffinity"] = [0, 2] + [0] * 14
    devices = gpus.discover().devices
    assert (devices[0].numa_node, devices[1].numa_node) == (None, 65)


def test_old_libraries_answer_in_bytes() -> None:
    gpus, nvml = driver("h100x8.json")
    nvml.node["devices"][0].update(name=b"NVIDIA H100", uuid=b"GPU-x", busId=b"00000000:18:00.0")
    first = gpus.discover().devices[0]
    assert (first.model, first.uuid, first.pci_bus_id) == ("NVIDIA H100", "GPU-x", "00000000:18:00.0")


def test_the_session_is_kept_and_made_anew_after_a_driver_reload() -> None:
    gpus, nvml = driver("h100x8.json")
    gpus.discover()
    gpus.discover()
    assert nvml.sessions == 1
    nvml.count_error = 999
    with pytest.raises(DriverAbsentError, match="Unknown Error"):
        gpus.discover()
    nvml.count_error = None
    assert len(gpus.discover().devices) == 8
    assert nvml.sessions == 2


@pytest.mark.parametrize("error", [9, 12])
def test_without_driver_or_library_there_are_no_gpus(error: int) -> None:
    gpus, nvml = driver("h100x8.json")
    nvml.init_error = error
    with pytest.raises(DriverAbsentError):
        gpus.discover()


class Cpus(DeviceDriver):
    def discover(self) -> DriverReading:
        return DriverReading(devices=(), driver="cpus")


def test_a_driver_that_is_loaded_later_is_noticed() -> None:
    gpus, nvml = driver("h100x8.json")
    nvml.init_error = 9
    both = FirstPresentDriver(gpus, Cpus())
    assert both.discover().driver == "cpus"
    nvml.init_error = None
    assert both.discover().driver == "nvidia 550.54.15"
    with pytest.raises(DriverAbsentError):
        FirstPresentDriver().discover()


def test_the_fake_has_the_names_and_numbers_of_the_real_library() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML_"))]
    assert len(names) > 25
    for name in names:
        real = getattr(pynvml, name)
        assert callable(real) == name.startswith("nvml")
        if name.startswith("NVML_"):
            assert real == getattr(FakeNvml, name), name
    for value, text in NVMLError.TEXTS.items():
        assert str(pynvml.NVMLError(value)) == text
        assert pynvml.NVMLError(value).value == value


def test_a_pool_counts_healthy_cards_only() -> None:
    descriptor = successor(None, found("h100x8-ecc.json"), NOW)
    assert descriptor is not None
    node = slots(ResourcePoolSpec(device_type=DeviceKind.GPU), descriptor)
    assert (node.devices, node.device_memory_bytes, node.model) == (6, 81559 * 2**20, "NVIDIA H100 80GB HBM3")
    assert [device[-1] for device, _ in node.unhealthy] == ["2", "6"]
