"""Registers the watches: every event goes into the cache and nowhere else. No handler patches, retries or returns."""

import time
from collections.abc import Callable
from typing import Any, Final

import kopf

from kuangchao_contracts import names
from kuangchao_operator.kube.cache import Cache

PLURALS: Final = {
    "TrainingJob": (names.GROUP, names.VERSION, "trainingjobs"),
    "ResourcePool": (names.GROUP, names.VERSION, "resourcepools"),
    "ResourceDescriptor": (names.GROUP, names.VERSION, "resourcedescriptors"),
    "Node": ("", "v1", "nodes"),
    "Pod": ("", "v1", "pods"),
}


class WatchClock:
    """When each kind's watch last said anything, for metrics."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def heard(self, kind: str) -> None:
        """An event came."""
        self._last[kind] = time.time()

    def reader(self, kind: str) -> Callable[[], float]:
        """A function that tells when a kind was last heard of; 0 for never."""
        return lambda: self._last.get(kind, 0.0)


def register(registry: kopf.OperatorRegistry, cache: Cache, clock: WatchClock) -> None:
    """Watch all kinds of the cache, and log in as the pod's ServiceAccount or from $KUBECONFIG."""
    kopf.on.login(registry=registry, id="login")(_login)
    for kind, (group, version, plural) in PLURALS.items():
        kopf.on.event(group, version, plural, registry=registry, id=f"watch-{plural}")(_feeder(kind, cache, clock))


def _feeder(kind: str, cache: Cache, clock: WatchClock) -> Callable[..., Any]:
    async def feed(event: dict[str, Any], **_: Any) -> None:
        clock.heard(kind)
        body = {**event["object"], "kind": kind}
        if event["type"] == "DELETED":
            cache.forget(kind, body)
        else:
            cache.see(kind, body)

    return feed


async def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
