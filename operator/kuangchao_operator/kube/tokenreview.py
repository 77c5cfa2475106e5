"""TokenReview: asks the API server whose account token it is. The token goes there and nowhere else."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from kuangchao_contracts.errors import UnavailableError
from kuangchao_contracts.wire import ACCOUNT_AUDIENCE
from kuangchao_operator.gate.accounts import AccountReview
from kuangchao_operator.kube.client import KubeApi, RefusedError

PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
POD_NAME: Final = "authentication.kubernetes.io/pod-name"
POD_UID: Final = "authentication.kubernetes.io/pod-uid"
logger = logging.getLogger(__name__)


class TokenReviews:
    """Reviews by the API server."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def review(self, token: str) -> AccountReview:
        """Whose token it is. Raises UnavailableError, also when we lack the right to ask."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [ACCOUNT_AUDIENCE]},
        }
        try:
            return read_review(await self._api.request("POST", PATH, body))
        except RefusedError as error:
            logger.warning("the API server reviews no tokens for us: %s", error)
            raise UnavailableError("account tokens cannot be reviewed") from None


def read_review(body: Mapping[str, Any]) -> AccountReview:
    """The answer in a TokenReview. What is missing in it counts against the token."""
    status = body.get("status") or {}
    user = status.get("user") or {}
    extra = user.get("extra") or {}
    return AccountReview(
        authenticated=status.get("authenticated") is True,
        audiences=tuple(status.get("audiences") or ()),
        user=str(user.get("username") or ""),
        pod=_only(extra.get(POD_NAME)),
        pod_uid=_only(extra.get(POD_UID)),
    )


def _only(values: Any) -> str:
    """The one value of an extra field; "" unless there is exactly one."""
    return str(values[0]) if isinstance(values, list) and len(values) == 1 else ""
