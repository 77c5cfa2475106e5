"""Keeps the newest checkpoint of the audit record outside the store: ConfigMap `kuangchao-audit-head`. Public only."""

from typing import Final

from kuangchao_contracts import names, notes
from kuangchao_contracts.notes import MAX_NOTE_BYTES
from kuangchao_operator.kube import paths
from kuangchao_operator.kube.client import MERGE
from kuangchao_operator.kube.writer import Writer

CONFIG_MAP: Final = "kuangchao-audit-head"
KEY: Final = "checkpoint"
BROKEN: Final = "broken."
"""Beginning of the keys of notes that were put aside."""


class AuditAnchor:
    """Writes the ConfigMap of the release's namespace, which the chart made."""

    def __init__(self, writer: Writer, namespace: str) -> None:
        self._writer, self._namespace = writer, namespace

    async def noted(self) -> str | None:
        """The checkpoint that is there. Raises UnavailableError."""
        found = await self._writer.api.get(paths.item("ConfigMap", CONFIG_MAP, self._namespace))
        return ((found or {}).get("data") or {}).get(KEY) or None

    async def put_aside(self, note: str) -> None:
        """Keep a checkpoint that the store does not continue, until somebody takes it away. Raises as `publish`."""
        try:
            said = notes.parse(note)
            name = f"{BROKEN}{said.day}.{said.size}"
        except notes.BadNoteError:
            name = f"{BROKEN}unreadable"
        path = paths.item("ConfigMap", CONFIG_MAP, self._namespace)
        # by another manager: the next `publish` would take away what its own has written
        query = {"fieldManager": f"{names.FIELD_MANAGER}-evidence"}
        await self._writer.api.request(
            "PATCH", path, {"data": {name: note[:MAX_NOTE_BYTES]}}, query=query, content_type=MERGE
        )

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
