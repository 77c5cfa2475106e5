"""The gate over HTTPS: envelope, errors, and how an error becomes the same exception on the other side."""

from typing import Annotated, Any, Final

from pydantic import Field

from kuangchao_contracts import errors as e
from kuangchao_contracts.base import Contract

CALL_PATH: Final = "/v1/call/"
TOKEN_PATH: Final = "/v1/token"
"""POST with a projected ServiceAccount token as bearer and no body: answered by the pod's TokenBundle."""
ACCOUNT_AUDIENCE: Final = "kuangchao-token-exchange"
"""Audience of that token. It is worth nothing at the API server, and no other token is worth anything here."""
TOKEN_BUNDLE: Final = "bundle.json"


class CallEnvelope(Contract):
    """Body of a call. The length of `resource` is judged by the gate, so that a refusal is recorded."""

    resource: str
    request: dict[str, Any]


class ErrorReply(Contract):
    """Body of a failed call. Refused tokens all say the same; the reason is in the audit record."""

    error: Annotated[str, Field(max_length=64)]
    message: Annotated[str, Field(max_length=1024)] = ""
    opid: Annotated[str, Field(max_length=32)] = ""


def bundle_key(role: str, audience: str) -> str:
    """Key of a token in a bundle: who presents it to whom, as `agent/kc:execution`."""
    return f"{role}/{audience}"


class TokenBundle(Contract):
    """What is in a pod's key of the token Secret: one lease per role and audience. Hidden from repr and logs.

    Keys are `<role>/<audience>`. Agent and ranks are different subjects with different rights:
    `agent/kc:execution` join, heartbeat; `agent/kc:state` restore_point; `agent/kc:interface` feed, and exchange for
    the one-shots that this lease also lists (commit_checkpoint, useless as long as it is only a lease);
    `rank/kc:topology`, `rank/kc:execution`, `rank/kc:state` the calls inside a rank process, shared by the pod's ranks;
    `rank/kc:plugin:<name>` those of a plug-in that the job names.
    A process hands its ranks the `rank/` keys only. The governance process has `governance/kc:governance`.
    """

    tokens: Annotated[dict[str, str], Field(repr=False)]
    attempt: int
    expires: int
    """Unix seconds of the earliest expiry."""

    def token(self, role: str, audience: str) -> str:
        """The lease that this role presents to this audience. Raises MalformedTokenError when the bundle lacks it."""
        try:
            return self.tokens[bundle_key(role, audience)]
        except KeyError:
            raise e.MalformedTokenError(f"bundle holds no token for {bundle_key(role, audience)}") from None


_STATUS: Final[dict[type[e.KuangchaoError], int]] = {
    e.DeniedError: 403,
    e.TooMuchSentError: 429,
    e.CapabilityError: 401,
    e.InvalidInputError: 400,
    e.ConflictError: 409,
    e.CheckpointCorruptError: 422,
    e.AuditUnavailableError: 503,
    e.UnavailableError: 503,
}
_BY_CODE: Final[dict[str, type[e.KuangchaoError]]] = {
    "invalid_token": e.CapabilityError,
    "denied": e.DeniedError,
    **{
        kind.code: kind
        for kind in (e.ConflictError, e.CheckpointCorruptError, e.AuditUnavailableError, e.UnavailableError)
    },
}


def to_reply(error: e.KuangchaoError, opid: str = "") -> tuple[int, ErrorReply]:
    """HTTP status and body for an error."""
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    if isinstance(error, e.CapabilityError):
        return status, ErrorReply(error=error.outward, opid=opid)
    return status, ErrorReply(error=error.code, message=str(error)[:1024], opid=opid)


def to_error(status: int, reply: ErrorReply) -> e.KuangchaoError:
    """The exception that a caller raises for a failed call."""
    kind = _BY_CODE.get(reply.error)
    if kind is not None:
        return kind(reply.message or reply.error)
    if status == 400:
        return e.RelayedInputError("request", reply.error, reply.message or reply.error)
    return e.UnavailableError(f"{status} {reply.error}: {reply.message}")
