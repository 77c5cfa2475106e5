"""Puts the plug-in of a job between algorithm and state, if it names one. Names none itself, and refuses plans where
nothing can be put there.
"""

from typing import TYPE_CHECKING

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Precision
from kuangchao_worker.layers.state.parameters import ParameterStore
from kuangchao_worker.layers.state.plugged import Call, PluggedStore
from kuangchao_worker.plugins import Seat
from kuangchao_worker.plugins.find import find
from kuangchao_worker.pod.assignment import Assignment

if TYPE_CHECKING:
    from kuangchao_worker.layers.state.sharded import ShardedStore
    from kuangchao_worker.plugins.service import PluginService


def plugged(
    store: "ParameterStore | ShardedStore", assignment: Assignment, call: Call
) -> "tuple[PluggedStore, PluginService]":
    """The store behind the job's plug-in. Raises InvalidInputError for a plan that splits the model."""
    (choice,) = assignment.launch.plugins
    plan = assignment.launch.plan
    if not isinstance(store, ParameterStore):
        raise InvalidInputError(
            "plugins",
            choice.name,
            f"reaches whole gradients only; the plan has tensor {plan.tensor}, pipeline {plan.pipeline}, sharding"
            f" {plan.sharding.value}",
            "parallelism.data = devices.count and parallelism.sharding none",
        )
    if assignment.launch.training.precision is Precision.FP16:
        # a step that is skipped has left gradients that are no numbers in the plug-in's memory already
        raise InvalidInputError("plugins", choice.name, "cannot stand beside a scaled loss: precision fp16", "bf16")
    plugin = find(choice, Seat(assignment.rank, plan.world_size, assignment.launch.training.seed))
    return PluggedStore(store, plugin, call), plugin
