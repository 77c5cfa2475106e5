"""A stand-in for the module `pynvml`: same names, same exceptions, answers from a file of tests/data/nvml."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DATA = Path(__file__).parents[2] / "data" / "nvml"


class NVMLError(Exception):
    """As in nvidia-ml-py: `value` is the error number."""

    TEXTS = {
        3: "Not Supported",
        2: "Invalid Argument",
        9: "Driver Not Loaded",
        12: "NVML Shared Library Not Found",
        15: "GPU is lost",
        16: "GPU requires restart",
        999: "Unknown Error",
    }

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return self.TEXTS[self.value]


def load(name: str) -> dict[str, Any]:
    """A data file with its base merged in."""
    document: dict[str, Any] = json.loads((DATA / name).read_text())
    if "base" not in document:
        return document
    base = load(document["base"])
    for index, changes in document["devices"].items():
        base["devices"][int(index)].update(changes)
    return base


class FakeNvml:
    """One instance is one machine; `node` may be changed while a driver uses it."""

    NVMLError = NVMLError
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_RESET_REQUIRED = 16
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_AFFINITY_SCOPE_NODE = 0
    NVML_NVLINK_MAX_LINKS = 36
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2
    NVML_TOPOLOGY_INTERNAL = 0
    NVML_TOPOLOGY_SINGLE = 10
    NVML_TOPOLOGY_MULTIPLE = 20
    NVML_TOPOLOGY_HOSTBRIDGE = 30
    NVML_TOPOLOGY_NODE = 40
    NVML_TOPOLOGY_SYSTEM = 50

    def __init__(self, node: dict[str, Any]) -> None:
        self.node = node
        self.sessions = 0
        self.init_error: int | None = None
        self.count_error: int | None = None

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise NVMLError(self.init_error)
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        if self.count_error is not None:
            raise NVMLError(self.count_error)
        return len(self.node["devices"])

    def nvmlSystemGetDriverVersion(self) -> str:
        return str(self.node["driverVersion"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self._answer(index, "handle", default=index)
        return index

    def nvmlDeviceGetName(self, handle: int) -> Any:
        return self._answer(handle, "name")

    def nvmlDeviceGetUUID(self, handle: int) -> Any:
        return self._answer(handle, "uuid")

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=self._answer(handle, "memoryTotal"))

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=self._answer(handle, "busId"))

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> Any:
        return tuple(self._answer(handle, "cudaComputeCapability"))

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> Any:
        assert sensor == self.NVML_TEMPERATURE_GPU
        return self._answer(handle, "temperature")

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> Any:
        assert (kind, counter) == (self.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self.NVML_VOLATILE_ECC)
        return self._answer(handle, "uncorrectedVolatileEcc")

    def nvmlDeviceGetRemappedRows(self, handle: int) -> Any:
        return tuple(self._answer(handle, "remappedRows"))

    def nvmlDeviceGetMigMode(self, handle: int) -> Any:
        return self._answer(handle, "migMode")

    def nvmlDeviceGetMemoryAffinity(self, handle: int, words: int, scope: int) -> Any:
        assert scope == self.NVML_AFFINITY_SCOPE_NODE
        return self._answer(handle, "memoryAffinity")[:words]

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> Any:
        active = self._answer(handle, "nvlinks")["active"]
        if link >= 18:
            raise NVMLError(2)
        return int(link < active)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> Any:
        return 2 if self._answer(handle, "nvlinks")["remote"] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return SimpleNamespace(busId=self._answer(handle, "nvlinks")["remote"])

    def nvmlDeviceGetTopologyCommonAncestor(self, first: int, second: int) -> Any:
        return self.node["commonAncestor"][first][second]

    def _answer(self, index: int, key: str, default: Any = None) -> Any:
        value = self.node["devices"][index].get(key, default)
        if isinstance(value, dict) and "error" in value:
            raise NVMLError(value["error"])
        return value
