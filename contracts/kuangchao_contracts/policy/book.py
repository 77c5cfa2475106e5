"""Where a process keeps the policy in force: one reference, so a change is one swap and nobody sees half of it."""

from kuangchao_contracts.policy.compiled import BUILT_IN
from kuangchao_contracts.policy.model import Policy


class PolicyBook:
    """Asked anew at every decision; keep the book, never the policy in it."""

    def __init__(self, policy: Policy = BUILT_IN) -> None:
        self.current = policy
