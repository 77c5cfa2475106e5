"""Full lists into the cache: at the start, before anything is decided, and now and then, for what a watch missed."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from kuangchao_contracts import names
from kuangchao_operator.kube import paths
from kuangchao_operator.kube.cache import KINDS, Cache, Change
from kuangchao_operator.kube.client import KubeApi
from kuangchao_operator.kube.index import version_of

NAMESPACED = frozenset({"TrainingJob", "Pod"})
logger = logging.getLogger(__name__)


class Reader:
    """Lists everything that the cache holds. `namespaces` empty: all namespaces."""

    def __init__(self, api: KubeApi, cache: Cache, namespaces: Sequence[str] = ()) -> None:
        self._api, self._cache, self._namespaces = api, cache, tuple(namespaces)

    async def fill(self, notify: Callable[[Change], None] | None = None) -> None:
        """List all kinds into the cache and tell what was new or is gone."""
        for kind in KINDS:
            for change in await self._fill(kind):
                if notify is not None and change.before is not change.after:
                    notify(change)

    async def _fill(self, kind: str) -> list[Change]:
        bodies: list[dict[str, Any]] = []
        versions = []
        scopes = self._namespaces if kind in NAMESPACED and self._namespaces else (None,)
        selector = names.LABEL_JOB_UID if kind == "Pod" else ""
        for namespace in scopes:
            first = True
            async for page in self._api.pages(paths.collection(kind, namespace), selector):
                if first:
                    versions.append(version_of(page))
                first = False
                # items of a list bear no kind of their own
                bodies += [{"apiVersion": page["apiVersion"], "kind": kind, **body} for body in page["items"]]
        return self._cache.sweep(kind, bodies, min(versions, default=0))
