"""The policy's ConfigMap as the API server shows it: who wrote it last, and the Event when its document has a fault.

The document itself is read by the issuer from its mounted file; nothing here is ever in force.
"""

import logging
from typing import Any, Final

from kuangchao_contracts import names
from kuangchao_contracts.errors import KuangchaoError
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.gate.revocations import writers
from kuangchao_operator.kube import paths
from kuangchao_operator.kube.client import KubeApi
from kuangchao_operator.kube.events import EventWriter
from kuangchao_operator.layers.execution.model import Emit

POLICY_FILE: Final = "policy.yaml"
logger = logging.getLogger(__name__)


class PolicyConfigMap:
    """ConfigMap `kuangchao-policy` of the release's namespace."""

    def __init__(self, api: KubeApi, events: EventWriter, namespace: str) -> None:
        self._api, self._events, self._namespace = api, events, namespace

    async def author(self) -> str:
        """Field manager and time of the last write of the document; "" when that cannot be read."""
        try:
            body = await self._api.get(paths.item("ConfigMap", names.POLICY, self._namespace))
        except KuangchaoError as error:
            logger.warning("cannot read who changed the policy: %s", error)
            return ""
        return writers(body).get(POLICY_FILE, "") if body else ""

    async def stale(self, problem: str) -> None:
        """Write the Event; the log and the audit record have said it already."""
        about: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": names.POLICY, "namespace": self._namespace},
        }
        try:
            await self._events.emit(about, Emit(type="Warning", reason=Reason.POLICY_STALE, message=problem[:1024]))
        except KuangchaoError as error:
            logger.warning("no Event about the policy: %s", error)
