"""What pods that are not ours ask of a node, counted as the scheduler counts it. Pure: JSON in, numbers out."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kuangchao_contracts.names import LABEL_JOB
from kuangchao_contracts.units import milli, to_bytes

Parse = Callable[[str | int, str], int]

_ENDED = ("Succeeded", "Failed")


def requests_of_others(pods: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """Milli-cores and bytes that pods without our job label ask for; pods that have ended ask for nothing."""
    counted = [pod.get("spec", {}) for pod in pods if not _ours(pod) and not _ended(pod)]
    return (
        sum(pod_request(spec, "cpu", milli) for spec in counted),
        sum(pod_request(spec, "memory", to_bytes) for spec in counted),
    )


def _ours(pod: Mapping[str, Any]) -> bool:
    return LABEL_JOB in (pod.get("metadata", {}).get("labels") or {})


def _ended(pod: Mapping[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") in _ENDED


def pod_request(spec: Mapping[str, Any], resource: str, parse: Parse) -> int:
    """What a pod asks for: its own request if it has one, else the larger of what runs together and the hungriest
    init container beside the side-cars started before it; plus the overhead of its runtime class."""
    overhead = parse((spec.get("overhead") or {}).get(resource, 0), resource)
    whole = _request(spec, resource)
    if whole is not None:
        return parse(whole, resource) + overhead
    running = sum(_of(container, resource, parse) for container in spec.get("containers") or ())
    sidecars = starting = 0
    for container in spec.get("initContainers") or ():
        size = _of(container, resource, parse)
        if container.get("restartPolicy") == "Always":
            sidecars += size
            starting = max(starting, sidecars)
        else:
            starting = max(starting, sidecars + size)
    return max(running + sidecars, starting) + overhead


def _of(container: Mapping[str, Any], resource: str, parse: Parse) -> int:
    return parse(_request(container, resource) or 0, resource)


def _request(holder: Mapping[str, Any], resource: str) -> str | int | None:
    value: str | int | None = ((holder.get("resources") or {}).get("requests") or {}).get(resource)
    return value
