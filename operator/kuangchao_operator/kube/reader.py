"""Full lists into the cache: at the start, before anything is decided, and now and then, for what a watch missed."""

from collections.abc import Sequence
from typing import Any

from kuangchao_contracts import names
from kuangchao_operator.kube import paths
from kuangchao_operator.kube.cache import KINDS, Cache
from kuangchao_operator.kube.client import KubeApi
from kuangchao_operator.kube.index import version_of

NAMESPACED = frozenset({"TrainingJob", "Pod"})


class Reader:
    """Lists everything that the cache holds. `namespaces` empty: all namespaces."""

    def __init__(self, api: KubeApi, cache: Cache, namespaces: Sequence[str] = ()) -> None:
        self._api, self._cache, self._namespaces = api, cache, tuple(namespaces)

    async def fill(self) -> None:
        """List all kinds into the cache."""
        for kind in KINDS:
            await self._fill(kind)

    async def _fill(self, kind: str) -> None:
        bodies: list[dict[str, Any]] = []
        versions = []
        scopes = self._namespaces if kind in NAMESPACED and self._namespaces else (None,)
        selector = names.LABEL_JOB_UID if kind == "Pod" else ""
        for namespace in scopes:
            pages = [page async for page in self._api.pages(paths.collection(kind, namespace), selector)]
            versions.append(version_of(pages[0]))
            for page in pages:
                # items of a list bear no kind of their own
                bodies += [{"apiVersion": page["apiVersion"], "kind": kind, **body} for body in page["items"]]
        self._cache.sweep(kind, bodies, min(versions))
