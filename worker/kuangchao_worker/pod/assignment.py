"""What the agent hands to one rank process of ours, as a JSON file in the run directory. Holds no secret."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from kuangchao_contracts.base import Contract, ShortText
from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.names import job_resource
from kuangchao_contracts.run import Attempt, LaunchSpec, Rank

LongPath = Annotated[str, Field(max_length=1024)]


class Assignment(Contract):
    """One rank of one attempt: what to run, who its peers are, where its files are."""

    launch: LaunchSpec
    attempt: Attempt
    rank: Rank
    local_rank: Annotated[int, Field(ge=0)]
    master_host: ShortText
    master_port: Annotated[int, Field(ge=1, le=65_535)]
    store_prefix: ShortText
    monitor: LongPath
    token_directory: LongPath
    trust_directory: LongPath
    run_directory: LongPath
    checkpoint_directory: LongPath | None = None
    """Absolute directory of the job's checkpoints; None: no checkpoints."""
    oplog_directory: LongPath | None = None
    """Where the rank's operation log lies; None: its head and count are kept only."""
    lease_grace_seconds: Annotated[float, Field(ge=0)] = 3_600.0
    """How long a lease that nobody renews stays good inside the rank."""
    restore: CheckpointRef | None = None
    """What to restore, checked by the agent of pod 0; only its ranks know, and rank 0 tells the others."""

    @property
    def resource(self) -> str:
        """The gate's resource string of the job."""
        return job_resource(self.launch.namespace, self.launch.job)

    @classmethod
    def read(cls, path: Path) -> "Assignment":
        """The assignment in a file."""
        return cls.model_validate_json(path.read_bytes())
