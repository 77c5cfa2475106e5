"""Publishes what others need to judge tokens, calls, the gate and the audit record: ConfigMap `kuangchao-trust`.

Public only.
"""

import logging
from collections.abc import Iterable
from typing import Final

from kuangchao_contracts import names
from kuangchao_contracts.errors import ChildRefusedError
from kuangchao_operator.kube.client import NotFoundError
from kuangchao_operator.kube.writer import Writer

CONFIG_MAP: Final = "kuangchao-trust"
POLICY_KEY: Final = "policy.json"
AUDIT_KEY: Final = "audit-keys.json"
logger = logging.getLogger(__name__)


class TrustPublisher:
    """Keeps the ConfigMap in the release namespace and in every namespace with running jobs equal to the truth."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._data: dict[str, str] = {}
        self._namespaces: set[str] = set()
        self._refused: set[str] = set()

    async def update(
        self, ca: str, jwks: str, policy: str, audit_keys: str, issuer: str, namespaces: Iterable[str]
    ) -> None:
        """New truth: write it wherever the old one is, and to these namespaces.

        A namespace that is gone is left; one where it is refused is tried again by `retry`, and holds up no other.
        """
        self._data = {
            "ca.crt": ca,
            "jwks.json": jwks,
            POLICY_KEY: policy,
            AUDIT_KEY: audit_keys,
            "issuer": issuer,
        }
        for namespace in sorted({*self._namespaces, *namespaces}):
            await self._write(namespace)

    async def retry(self) -> None:
        """Write the present truth where it was refused: ranks there would soon refuse every new lease."""
        for namespace in sorted(self._refused):
            await self._write(namespace)

    async def _write(self, namespace: str) -> None:
        try:
            await self.ensure(namespace)
        except NotFoundError:
            logger.warning("trust was not published in %s: the namespace is gone", namespace)
            self._namespaces.discard(namespace)
            self._refused.discard(namespace)
        except ChildRefusedError as error:
            logger.warning("trust was not published in %s, tried again: %s", namespace, error)
            self._refused.add(namespace)

    async def ensure(self, namespace: str) -> None:
        """Have the present truth in a namespace. Always written: the namespace may have been made anew."""
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
        self._namespaces.add(namespace)
        self._refused.discard(namespace)
