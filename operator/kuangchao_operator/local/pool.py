"""This machine as a pool of one node, large enough for the job. Describes; allocates nothing."""

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
from kuangchao_contracts.base import Contract
from kuangchao_contracts.descriptor import DeviceKind, NodeDescriptor
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_operator.layers.resource.local import describe_host

NODE = "localhost"
CORE = 1_000
"""Milli-cores of a CPU device where the machine has enough of them."""


class LocalPool(Contract):
    """The pool, its one node, and what a user should know about how it came about."""

    spec: ResourcePoolSpec
    descriptor: NodeDescriptor
    notes: tuple[str, ...] = ()


def local_pool(job: TrainingJob) -> LocalPool:
    """The pool that a job finds on this machine, whatever the pool in its manifest is called."""
    return pool_for(job, describe_host(NODE))


def pool_for(job: TrainingJob, descriptor: NodeDescriptor) -> LocalPool:
    """A pool with one core for each device or, on a smaller machine, an equal share of its cores.

    Raises InvalidInputError when the machine cannot be divided into so many devices.
    """
    count = job.spec.devices.count
    gpus = sum(1 for device in descriptor.devices if device.kind is DeviceKind.GPU and device.healthy)
    kind = job.spec.devices.type or (DeviceKind.GPU if gpus >= count else DeviceKind.CPU)
    if kind is DeviceKind.GPU:
        return LocalPool(spec=ResourcePoolSpec(device_type=kind), descriptor=descriptor)
    usable = descriptor.host.allocatable_milli_cpu - descriptor.host.others_milli_cpu
    share = min(CORE, usable // count)
    if share < 1:
        raise InvalidInputError("spec.devices.count", count, f"this machine has {usable}m of CPU", max(usable, 1))
    note = f"{count} devices share {usable / 1_000:g} cores: {share}m each instead of 1, so steps take longer"
    spec = ResourcePoolSpec(cpu_per_device=f"{share}m")
    return LocalPool(spec=spec, descriptor=descriptor, notes=(note,) if share < CORE else ())
