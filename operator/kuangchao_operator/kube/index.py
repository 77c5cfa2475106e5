"""One kind of object as last seen, by key. Knows old from new, so that lists and watches may feed it in any order."""

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from kuangchao_contracts.errors import KuangchaoError

T = TypeVar("T")
Key = tuple[str, str]
"""Namespace ("" for objects of the cluster) and name."""


class Index(Generic[T]):
    """Values made from bodies; the bodies themselves are not kept. `make` returns None for what is not ours."""

    def __init__(self, make: Callable[[dict[str, Any]], T | None]) -> None:
        self._make = make
        self._values: dict[Key, tuple[int, T | None]] = {}
        self._gone: dict[Key, int] = {}

    def see(self, body: dict[str, Any]) -> tuple[T | None, T | None]:
        """Take in an object; returns the value before and the value now."""
        key, version = key_of(body), version_of(body)
        known = self._values.get(key)
        before = known[1] if known else None
        if (known is not None and version <= known[0]) or version <= self._gone.get(key, -1):
            return before, before
        value = self._make(body)
        self._values[key] = version, value
        return before, value

    def forget(self, body: dict[str, Any]) -> T | None:
        """Drop an object that is gone; returns its last value."""
        key, version = key_of(body), version_of(body)
        known = self._values.get(key)
        if known is not None and known[0] > version:
            return None
        self._values.pop(key, None)
        self._gone[key] = version
        return known[1] if known else None

    def sweep(self, present: set[Key], version: int) -> list[T]:
        """Drop what a full list of this version does not have: its end was missed by the watch. Returns the dropped."""
        lost = [key for key, (seen, _) in self._values.items() if key not in present and seen <= version]
        self._gone = {key: when for key, when in self._gone.items() if when > version}
        dropped = [self._values.pop(key)[1] for key in lost]
        return [value for value in dropped if value is not None]

    def get(self, name: str, namespace: str = "") -> T | None:
        """The value of one object."""
        known = self._values.get((namespace, name))
        return known[1] if known else None

    def drop(self, name: str, namespace: str = "") -> T | None:
        """Forget one object that was found missing; returns its last value."""
        known = self._values.pop((namespace, name), None)
        return known[1] if known else None

    def __iter__(self) -> Iterator[T]:
        return (value for _, value in list(self._values.values()) if value is not None)


def key_of(body: dict[str, Any]) -> Key:
    """Namespace and name of an object."""
    return body["metadata"].get("namespace") or "", body["metadata"]["name"]


def version_of(body: dict[str, Any]) -> int:
    """resourceVersion as a number; API servers on etcd count with it, and newer is greater."""
    text = str(body["metadata"].get("resourceVersion") or "0")
    if not text.isdecimal():
        raise KuangchaoError(f"resourceVersion {text!r} is not a number; this API server cannot be followed")
    return int(text)
