"""Publishes what workers need to judge tokens and the gate's certificate: ConfigMap `kuangchao-trust`. Public only."""

from collections.abc import Iterable
from typing import Final

from kuangchao_contracts import names
from kuangchao_operator.kube.writer import Writer

CONFIG_MAP: Final = "kuangchao-trust"


class TrustPublisher:
    """Keeps the ConfigMap in the release namespace and in every namespace with running jobs equal to the truth."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._data: dict[str, str] = {}
        self._published: dict[str, dict[str, str]] = {}

    async def update(self, ca: str, jwks: str, issuer: str, namespaces: Iterable[str]) -> None:
        """New truth: write it wherever the old one is, and to these namespaces. Unchanged: no write."""
        self._data = {"ca.crt": ca, "jwks.json": jwks, "issuer": issuer}
        for namespace in {*self._published, *namespaces}:
            await self.ensure(namespace)

    async def ensure(self, namespace: str) -> None:
        """Have the present truth in a namespace."""
        if self._published.get(namespace) == self._data:
            return
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": CONFIG_MAP,
                "namespace": namespace,
                "labels": {names.LABEL_MANAGED_BY: names.FIELD_MANAGER},
            },
            "data": self._data,
        }
        await self._writer.apply(body)
        self._published[namespace] = self._data

    def forget(self, namespace: str) -> None:
        """The namespace may have lost its copy (it was deleted and made anew): write again at the next launch."""
        self._published.pop(namespace, None)
