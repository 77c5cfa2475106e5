"""Keeps the newest checkpoint of the audit record outside the store: ConfigMap `kuangchao-audit-head`. Public only."""

from typing import Final

from kuangchao_contracts import names
from kuangchao_operator.kube.writer import Writer

CONFIG_MAP: Final = "kuangchao-audit-head"
KEY: Final = "checkpoint"


class AuditAnchor:
    """Writes the ConfigMap of the release's namespace, which the chart made."""

    def __init__(self, writer: Writer, namespace: str) -> None:
        self._writer, self._namespace = writer, namespace

    async def publish(self, note: str) -> None:
        """Replace the checkpoint that is there. Raises what the writer raises."""
        await self._writer.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": CONFIG_MAP,
                    "namespace": self._namespace,
                    "labels": {names.LABEL_MANAGED_BY: names.FIELD_MANAGER},
                },
                "data": {KEY: note},
            }
        )
