"""What a port method receives beside its request: the right under which it was called, already verified."""

from kuangchao_contracts.base import Contract
from kuangchao_contracts.tokens import Claims


class Capability(Contract):
    """A verified and authorised call. Only the gate makes these."""

    claims: Claims
    kid: str
    op: str
    resource: str
    opid: str
