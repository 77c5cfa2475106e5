"""Links between the GPUs of a node as NVML tells them, in the words of `nvidia-smi topo -m`."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from typing import Any, Final

from kuangchao_contracts.descriptor import DeviceLink

_SWITCH: Final = "switch"


def read_links(nvml: Any, handles: dict[int, Any]) -> tuple[DeviceLink, ...]:
    """One link for each pair of the given devices of which anything is known."""
    nvlinks = {index: _nvlinks(nvml, handle) for index, handle in handles.items()}
    bus = {index: _bus_id(_soft(nvml, nvml.nvmlDeviceGetPciInfo, handle)) for index, handle in handles.items()}
    found = []
    for first, second in combinations(sorted(handles), 2):
        count = _bonded(nvlinks[first], nvlinks[second], bus[second])
        kind = f"NV{count}" if count else _pcie(nvml, handles[first], handles[second])
        if kind is not None:
            found.append(DeviceLink(first=first, second=second, kind=kind))
    return tuple(found)


def _bonded(first: Counter[str], second: Counter[str], second_bus: str) -> int:
    """NVLinks between two devices: direct ones, or through the switches that both are wired to."""
    return first[second_bus] or min(first[_SWITCH], second[_SWITCH])


def _nvlinks(nvml: Any, handle: Any) -> Counter[str]:
    """Active NVLinks of a device by what is at their other end."""
    ends: Counter[str] = Counter()
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if not _soft(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link):
            continue
        if _soft(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            ends[_SWITCH] += 1
        else:
            ends[_bus_id(_soft(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))] += 1
    return ends


def _pcie(nvml: Any, first: Any, second: Any) -> str | None:
    words = {
        nvml.NVML_TOPOLOGY_INTERNAL: "PIX",
        nvml.NVML_TOPOLOGY_SINGLE: "PIX",
        nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        nvml.NVML_TOPOLOGY_NODE: "NODE",
        nvml.NVML_TOPOLOGY_SYSTEM: "SYS",
    }
    return words.get(_soft(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, first, second))


def _soft(nvml: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """The answer or None: a link that cannot be read is not there; a lost card shows in its own reading."""
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return None


def _bus_id(pci: Any) -> str:
    if pci is None:
        return ""
    return pci.busId.decode() if isinstance(pci.busId, bytes) else str(pci.busId)
