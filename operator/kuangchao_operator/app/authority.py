"""The loop's tokens: asked of the issuer for execution, on whose behalf the loop acts."""

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.layers import Layer
from kuangchao_operator.gate.minting import JobRef, LayerTokens
from kuangchao_operator.shell.ports import Authority


class ExecutionAuthority(Authority):
    """Execution's right to call one operation on one job."""

    def __init__(self, tokens: LayerTokens) -> None:
        self._tokens = tokens

    async def token(self, job: TrainingJob, op: str) -> str:
        """A token that is good for this call only, or a lease of this attempt."""
        metadata = job.metadata
        return await self._tokens.token(
            Layer.EXECUTION, JobRef(metadata.namespace or "", metadata.name, metadata.uid), op
        )
