"""A plug-in behind the gate of a rank: real tokens, each for one audience, and a real operation log."""

from kuangchao_contracts.base import Contract
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.keys import KeySet
from kuangchao_contracts.layers import plugin_audience
from kuangchao_contracts.names import job_resource
from kuangchao_contracts.oplog import OperationLog
from kuangchao_contracts.plugins import PluginChoice
from kuangchao_contracts.ports.base import operations
from kuangchao_contracts.ports.plugin import PluginRank
from kuangchao_contracts.tokens import TokenVerifier
from kuangchao_worker.plugins import Codec, Seat
from kuangchao_worker.plugins.service import PluginService
from tests.unit.authority.kit import FixedFence
from tests.unit.worker.fakegate import ISSUER, UID, Issuer

RESOURCE = job_resource("team", "job")
OPS = tuple(operations(PluginRank))


class Rank:
    """The gate of one rank with one plug-in."""

    def __init__(
        self,
        name: str,
        codec: Codec,
        options: dict[str, str] | None = None,
        rank: int = 0,
        world: int = 1,
        seed: int = 0,
    ) -> None:
        codec.seated(Seat(rank, world, seed))
        self.service = PluginService(PluginChoice(name=name, options=options or {}), codec)
        self.issuer, self.log = Issuer(), OperationLog()
        fence = FixedFence()
        fence.attempts = {UID: 1}
        self.gate = Gate(f"rank/{rank}", TokenVerifier(KeySet(self.issuer.jwks), ISSUER), fence, self.log)
        self.gate.register(self.service)
        self.own = self.token(plugin_audience(name))

    def token(self, audience: str, *ops: str) -> str:
        """A lease of this rank."""
        return self.issuer.mint("rank:team/job/pod-0", audience, ops or OPS, 1)

    def call(self, op: str, request: Contract, token: str | None = None) -> Contract:
        """Through the gate, with the plug-in's own token unless another is given."""
        return self.gate.call_now(token or self.own, op, RESOURCE, request)
