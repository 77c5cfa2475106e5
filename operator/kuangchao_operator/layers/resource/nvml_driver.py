"""NVIDIA GPUs through NVML (nvidia-ml-py, loaded when first used). Reads only.

NVML answers for each question on its own, and many cards do not know many answers: "not supported" becomes None. A card
that is lost or needs a reset becomes a reading with a fault, under the identity it had.
"""

import importlib
from collections.abc import Callable
from typing import Any

from kuangchao_contracts.descriptor import DeviceKind
from kuangchao_operator.layers.resource.driver import DeviceDriver, DriverAbsentError
from kuangchao_operator.layers.resource.model import DeviceReading, DriverReading
from kuangchao_operator.layers.resource.nvml_links import read_links

AFFINITY_WORDS = 16
"""64-bit words of the NUMA mask: 1024 memory nodes, the kernel's own limit."""


def load_library() -> Any:
    """The vendor's module. Raises DriverAbsentError where it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        raise DriverAbsentError("nvidia-ml-py is not installed") from None


class NvmlDriver(DeviceDriver):
    """All GPUs of this machine."""

    def __init__(self, library: Callable[[], Any] = load_library) -> None:
        self._load = library
        self._nvml: Any = None
        self._known: dict[int, DeviceReading] = {}

    def discover(self) -> DriverReading:
        """All GPUs as they are now. Raises DriverAbsentError without library, driver or device."""
        nvml = self._library()
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self._close()
            raise DriverAbsentError(f"NVML does not count devices: {error}") from None
        pairs = [self._device(index) for index in range(count)]
        well = {reading.index: handle for reading, handle in pairs if reading.fault is None}
        version = ask(nvml, nvml.nvmlSystemGetDriverVersion)
        return DriverReading(
            devices=tuple(reading for reading, _ in pairs),
            links=read_links(nvml, well),
            driver=f"nvidia {version}" if version is not None else "nvidia",
        )

    def _library(self) -> Any:
        if self._nvml is None:
            nvml = self._load()
            try:
                nvml.nvmlInit()
            except nvml.NVMLError as error:
                raise DriverAbsentError(f"NVML does not start: {error}") from None
            self._nvml = nvml
        return self._nvml

    def _close(self) -> None:
        """Forget the session, so that the next reading starts NVML anew."""
        nvml, self._nvml = self._nvml, None
        ask(nvml, nvml.nvmlShutdown)

    def _device(self, index: int) -> tuple[DeviceReading, Any]:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            reading = self._reading(index, handle)
        except self._nvml.NVMLError as error:
            return self._broken(index, str(error)), None
        self._known[index] = reading
        return reading, handle

    def _broken(self, index: int, why: str) -> DeviceReading:
        known = self._known.get(index)
        if known is None:
            known = DeviceReading(index=index, uuid=f"unidentified-{index}", kind=DeviceKind.GPU, model="")
        return known.replace(fault=why)

    def _reading(self, index: int, handle: Any) -> DeviceReading:
        nvml = self._nvml
        capability = ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
        # identity and memory are what every card knows: an error here is a fault of the card, so it is not asked softly
        uuid, memory = _text(nvml.nvmlDeviceGetUUID(handle)), int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        remapped = ask(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
        mig = ask(nvml, nvml.nvmlDeviceGetMigMode, handle)
        pci = ask(nvml, nvml.nvmlDeviceGetPciInfo, handle)
        return DeviceReading(
            index=index,
            uuid=uuid,
            kind=DeviceKind.GPU,
            model=_text(ask(nvml, nvml.nvmlDeviceGetName, handle) or ""),
            memory_bytes=memory,
            compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
            pci_bus_id=_text(pci.busId) if pci is not None else None,
            numa_node=self._numa_node(handle),
            temperature_celsius=ask(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            uncorrectable_ecc=ask(
                nvml,
                nvml.nvmlDeviceGetTotalEccErrors,
                handle,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            remap_pending=bool(remapped[2]) if remapped is not None else None,
            remap_failed=bool(remapped[3]) if remapped is not None else None,
            partitioned=bool(mig[0]) if mig is not None else None,
        )

    def _numa_node(self, handle: Any) -> int | None:
        """The memory node next to the card, when there is exactly one."""
        nvml = self._nvml
        words = ask(nvml, nvml.nvmlDeviceGetMemoryAffinity, handle, AFFINITY_WORDS, nvml.NVML_AFFINITY_SCOPE_NODE)
        mask = sum(int(word) << (64 * place) for place, word in enumerate(words)) if words is not None else 0
        return mask.bit_length() - 1 if mask.bit_count() == 1 else None


def ask(nvml: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None where the card or driver does not know. A lost card raises: that is not "unknown"."""
    try:
        return question(*arguments)
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
            raise
        return None


def _text(value: str | bytes) -> str:
    """Older versions of the library answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value
