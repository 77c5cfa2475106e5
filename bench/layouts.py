"""The ways of two ranks to share a model in which the executor is compared with torch by hand. Pure."""

from enum import StrEnum
from typing import Any, Final

MICRO_BATCHES: Final = 4
"""Of a step in a pipeline."""


class Layout(StrEnum):
    """What the two ranks divide among them."""

    DATA = "data"
    SHARDED = "sharded"
    TENSOR = "tensor"
    PIPELINE = "pipeline"

    @property
    def replicas(self) -> int:
        """How many shares a batch is divided into; ranks that divide the model see the same samples."""
        return 2 if self in (Layout.DATA, Layout.SHARDED) else 1

    @property
    def loads(self) -> int:
        """How often a rank takes samples out of the data set in a step."""
        return MICRO_BATCHES if self is Layout.PIPELINE else 1

    def pinned(self, batch: int) -> dict[str, Any]:
        """`spec.parallelism` of the job that is laid out so, for a global batch."""
        micro = batch // self.replicas // self.loads
        sizes: dict[Layout, dict[str, Any]] = {
            Layout.DATA: {"data": 2},
            Layout.SHARDED: {"data": 2, "sharding": "full"},
            Layout.TENSOR: {"tensor": 2},
            Layout.PIPELINE: {"pipeline": 2},
        }
        return {"mode": "Manual", "microBatch": micro, **sizes[self]}

    @property
    def model(self) -> dict[str, Any] | None:
        """`spec.model` of such a job, which the planner asks for where a model is divided: the shape of `matrices`."""
        if self in (Layout.DATA, Layout.SHARDED):
            return None
        sizes = {"layers": 4, "hidden": 1_024, "heads": 2, "ffn": 1_024, "vocab": 2}
        return {"kind": "transformer", **sizes}
