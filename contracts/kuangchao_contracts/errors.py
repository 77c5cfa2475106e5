"""The error tree. Every error has a stable CamelCase `code`, equal to the reason in conditions, events and docs.

Messages name the field, the offending value and the nearest legal one; they never hold token bytes.
"""

from typing import ClassVar


class KuangchaoError(Exception):
    """Root of all errors that this project raises on purpose."""

    code: ClassVar[str] = "Internal"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" not in cls.__dict__:
            cls.code = cls.__name__.removesuffix("Error")


class InvalidInputError(KuangchaoError):
    """A value given by a user is illegal: field, value, why, and what would be legal."""

    def __init__(self, field: str, value: object, why: str, nearest: object | None = None) -> None:
        self.field, self.value, self.why, self.nearest = field, value, why, nearest
        hint = f"; nearest legal value: {nearest}" if nearest is not None else ""
        super().__init__(f"{field}={value!r}: {why}{hint}")


class RelayedInputError(InvalidInputError):
    """The same as another process found it, in its words, which name field and value already."""

    code = InvalidInputError.code

    def __init__(self, field: str, value: object, message: str) -> None:
        super().__init__(field, value, message)
        self.args = (message,)


class PlanInfeasibleError(KuangchaoError):
    """No plan fits; the message carries the arithmetic."""


class StorageError(KuangchaoError):
    """Checkpoint or audit storage is missing, full or not ours."""


class CheckpointCorruptError(StorageError):
    """A checkpoint does not match its manifest."""


class ConflictError(KuangchaoError):
    """A compare-and-swap lost against another writer; read again and decide again."""


class ChildRefusedError(KuangchaoError):
    """The API server refused an object of a job. `final`: the same request can never succeed."""

    code = "ChildCreationFailed"

    def __init__(self, message: str, *, final: bool) -> None:
        self.final = final
        super().__init__(message)


class GateError(KuangchaoError):
    """A call was refused at the gate, or could not be recorded."""


class CapabilityError(GateError):
    """The token does not permit this call. Outwardly every cause looks the same (see `outward`)."""

    http_status: ClassVar[int] = 401
    outward: ClassVar[str] = "invalid_token"


class DeniedError(CapabilityError):
    """The token is genuine but does not cover the call."""

    http_status: ClassVar[int] = 403
    outward: ClassVar[str] = "denied"


# fmt: off  # a closed list reads best as a list
class TokenTooLargeError(CapabilityError): ...


class MalformedTokenError(CapabilityError): ...


class MalformedKidError(CapabilityError): ...


class UnknownKeyError(CapabilityError): ...


class RetiredKeyError(CapabilityError): ...


class RevokedKeyError(CapabilityError): ...


class UnexpectedHeaderError(CapabilityError): ...


class InvalidTypeError(CapabilityError): ...


class InvalidAlgorithmError(CapabilityError): ...


class InvalidSignatureError(CapabilityError): ...


class DuplicateKeyError(CapabilityError): ...


class ExpiredSignatureError(CapabilityError): ...


class ImmatureSignatureError(CapabilityError): ...


class InvalidClaimTypeError(CapabilityError): ...


class LifetimeExceededError(CapabilityError): ...


class MissingRequiredClaimError(CapabilityError): ...


class InvalidAudienceError(CapabilityError): ...


class InvalidIssuerError(CapabilityError): ...


class UnexpectedClaimError(CapabilityError): ...


class InvalidJTIError(CapabilityError): ...


class ReplayedTokenError(CapabilityError): ...


class ReplayStoreLostError(CapabilityError): ...


class StaleEpochError(CapabilityError): ...


class FutureEpochError(CapabilityError): ...


class StalePolicyError(CapabilityError): ...


class RevokedTokenError(CapabilityError): ...


class TooManyFailuresError(CapabilityError): ...


class TooMuchSentError(CapabilityError):
    """Said of good tokens only, whose bearer may know it: it is to come again later."""

    http_status: ClassVar[int] = 429
    outward: ClassVar[str] = "TooMuchSent"


class OneShotRequiredError(DeniedError): ...


class InvalidResourceError(DeniedError): ...


class WildcardForbiddenError(DeniedError): ...


class UnknownOperationError(DeniedError): ...


class PermissionDeniedError(DeniedError): ...


class CrossTenantError(DeniedError): ...


class RankMismatchError(DeniedError): ...


class SeparationOfDutyError(DeniedError): ...


class DelegationError(DeniedError): ...


class ExchangeDeniedError(DeniedError): ...


class ReachedAroundError(DeniedError):
    """Code of the user's reached around a layer inside its own rank. The message says what, where and at which step."""


class ParameterTamperedError(ReachedAroundError): ...


class UnleasedWriteError(ReachedAroundError): ...


class DirectCommunicationError(ReachedAroundError): ...


# fmt: on


def refusals(kind: type[CapabilityError] = CapabilityError) -> dict[str, type[CapabilityError]]:
    """A kind of refusal and all that are special cases of it, by code."""
    return {kind.code: kind} | {code: sub for below in kind.__subclasses__() for code, sub in refusals(below).items()}


class AuditUnavailableError(GateError):
    """The record cannot be made durable, so the operation is refused and nothing happened."""


class UnavailableError(KuangchaoError):
    """A peer process or the API server did not answer in time; trying again may help."""


class StepOrderError(KuangchaoError):
    """A step id was submitted twice, skipped or out of order."""


class NonFiniteLossError(KuangchaoError):
    """A loss is no number, so its gradients would spoil the weights; they are not applied."""


class NonFiniteGradientsError(KuangchaoError):
    """The norm of the gradients is no number, so they are not applied."""


class DatasetEndedError(KuangchaoError):
    """A dataset has no sample at an index below its length."""


class RanksDifferError(KuangchaoError):
    """Ranks of one gang are not at the same step, or do not have the same model or data."""


class PeerLostError(KuangchaoError):
    """A collective failed because another rank or the link to it is gone; the fault lies elsewhere."""
