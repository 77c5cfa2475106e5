"""What a port method receives beside its request: the right under which it was called, already verified."""

from collections.abc import Iterable

from kuangchao_contracts.base import Contract
from kuangchao_contracts.claims import Claims
from kuangchao_contracts.errors import PermissionDeniedError, RankMismatchError


class Capability(Contract):
    """A verified and authorised call. Only the gate makes these.

    The gate cannot know what is inside a request: a port whose request names a pod or ranks calls the two methods.
    """

    claims: Claims
    kid: str
    op: str
    resource: str
    opid: str

    def require_pod(self, pod: str) -> None:
        """Raise PermissionDeniedError unless the token is that pod's own."""
        if self.claims.pod != pod:
            raise PermissionDeniedError("request names another pod than the token")

    def require_ranks(self, ranks: Iterable[int]) -> None:
        """Raise RankMismatchError unless all these ranks are the token's own."""
        if not self.claims.holds_ranks(ranks):
            raise RankMismatchError("request names a rank that is not the token's")
